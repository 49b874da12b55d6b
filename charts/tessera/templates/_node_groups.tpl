{{- /* The problems of the node groups, as JSON: forms of texts, and rules between fields. The schema has the rest. */ -}}
{{- define "tessera.checks.groups" -}}
{{- $rules := .rules -}}
{{- $problems := list -}}
{{- $names := list -}}
{{- range $number, $group := .groups | default list -}}
{{- $place := printf "tessera.controller.nodeGroups.%d" $number -}}
{{- $kind := $group.cards.kind | default "slices" -}}
{{- $texts := list (list (printf "%s.name" $place) $group.name $rules.name) (list (printf "%s.cards.model" $place) $group.cards.model (get $rules.models $kind)) -}}
{{- range $field := list "selector" "labels" "allocatable" -}}
{{- range $key, $value := get $group $field | default dict -}}
{{- $texts = append $texts (list (printf "%s.%s" $place $field) $key $rules.key) -}}
{{- $texts = append $texts (list (printf "%s.%s.%s" $place $field $key) $value (ternary $rules.amount $rules.value (eq $field "allocatable"))) -}}
{{- end -}}
{{- end -}}
{{- range $index, $taint := $group.taints -}}
{{- $texts = append $texts (list (printf "%s.taints.%d.key" $place $index) $taint.key $rules.key) -}}
{{- $texts = append $texts (list (printf "%s.taints.%d.value" $place $index) ($taint.value | default "") $rules.value) -}}
{{- end -}}
{{- range $texts -}}
{{- $text := toString (index . 1) -}}
{{- if or (not (regexMatch (index . 2).pattern $text)) (gt (len (splitList "/" $text | first)) (int $rules.prefixLength)) -}}
{{- $problems = append $problems (printf "%s: %q: %s" (index . 0) (trunc 100 $text) (index . 2).rule) -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := $group.labels -}}
{{- if and (hasKey $group.selector $key) (ne $value (get $group.selector $key)) -}}
{{- $problems = append $problems (printf "%s.labels.%s: %q: selector says %q; %s" $place $key $value (get $group.selector $key) $rules.agreement) -}}
{{- end -}}
{{- end -}}
{{- if ne (gt (int ($group.cards.replicas | default 1)) 1) (eq $kind "shares") -}}
{{- $problems = append $problems (printf "%s.cards: kind %s with replicas %d: replicas of 2 or more are stated for kind shares, and for no other" $place $kind (int ($group.cards.replicas | default 1))) -}}
{{- end -}}
{{- if has $group.name $names }}{{ $problems = append $problems (printf "%s.name: two groups are named %q; names must differ" $place $group.name) }}{{ end -}}
{{- $names = append $names $group.name -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}
