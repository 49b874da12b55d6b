{{- /* Labels of every object. */ -}}
{{- define "tessera.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* The label of a namespace with its Pod Security level. */ -}}
{{- define "tessera.podSecurity" -}}
{{- if (index . 0).Values.tessera.podSecurity }}pod-security.kubernetes.io/enforce: {{ index . 1 }}{{ end -}}
{{- end -}}

{{- /* "true" if pods need rights to OpenShift's security context constraints. */ -}}
{{- define "tessera.openshift" -}}
{{- $choice := toString .Values.tessera.openshift -}}
{{- if eq $choice "auto" }}{{ .Capabilities.APIVersions.Has "security.openshift.io/v1" }}{{ else }}{{ $choice }}{{ end -}}
{{- end -}}

{{- /* The issuer of the webhook's certificate. */ -}}
{{- define "tessera.issuer" -}}
{{- $issuer := (index . 0).Values.tessera.webhook.certManager.issuer -}}
{{- if $issuer.name }}{{ toJson $issuer }}{{ else }}{{ index . 1 }}{{ end -}}
{{- end -}}

{{- /* Entries that an object has with cert-manager only. */ -}}
{{- define "tessera.byCertManager" -}}
{{- if (index . 0).Values.tessera.webhook.certManager.enabled }}{{ toYaml (index . 1) }}{{ end -}}
{{- end -}}

{{- define "tessera.image" -}}
{{- $image := .Values.tessera.image -}}
{{- $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- /* The entries of a mapping, as YAML; nothing for an empty one. */ -}}
{{- define "tessera.extra" -}}
{{- with . }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- /* Those entries of a mapping that have a value. */ -}}
{{- define "tessera.optional" -}}
{{- range $key, $value := . }}{{ if $value }}
{{ $key }}: {{ toJson $value }}
{{- end }}{{ end -}}
{{- end -}}

{{- /* The annotations of a workload's pods. */ -}}
{{- define "tessera.annotations" -}}
{{- $root := index . 0 -}}
{{- $key := index . 1 -}}
{{- $found := deepCopy (index $root.Values.tessera $key).podAnnotations -}}
{{- if $root.Values.tessera.monitoring.podAnnotations -}}
{{- $workloads := $root.Files.Get "files/workloads.json" | fromJson -}}
{{- $found = merge $found ((get $workloads (printf "tessera-%s" $key)).scrape | default dict) -}}
{{- end -}}
{{- with $root.Values.tessera.registries.authorities }}{{ if eq $key "controller" -}}
{{- $_ := set $found "checksum/registry-ca" (sha256sum .) -}}
{{- end }}{{ end -}}
{{- include "tessera.optional" (dict "annotations" $found) -}}
{{- end -}}

{{- /* "true" if a definition is this release's, or is in no cluster yet: definitions of others are left as they are. */ -}}
{{- define "tessera.crd.ours" -}}
{{- $root := index . 0 -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (index . 1) -}}
{{- $owner := dig "metadata" "annotations" "meta.helm.sh/release-name" "" ($found | default dict) -}}
{{- and $root.Values.tessera.crds.install (or (not $found) (eq $owner $root.Release.Name)) -}}
{{- end -}}

{{- /* The host's folder of a volume of the agent. */ -}}
{{- define "tessera.folder" -}}
{{- $folders := (include "tessera.settings" (index . 0) | fromJson).folders -}}
{{- get $folders (index . 1) | default (index . 2) -}}
{{- end -}}

{{- /* The addresses that reach the webhook. */ -}}
{{- define "tessera.webhook.from" -}}
{{- $from := list -}}
{{- range .Values.tessera.networkPolicy.apiServers }}{{ $from = append $from (dict "ipBlock" (dict "cidr" .)) }}{{ end -}}
{{- include "tessera.optional" (dict "from" $from) -}}
{{- end -}}

{{- /* The authorities of registries, in the controller's pod. */ -}}
{{- define "tessera.authorities.mount" -}}
{{- if .Values.tessera.registries.authorities -}}
volumeMounts: [{name: registry-ca, mountPath: /etc/tessera/registry-ca, readOnly: true}]
{{- end -}}
{{- end -}}
{{- define "tessera.authorities.volume" -}}
{{- if .Values.tessera.registries.authorities -}}
volumes: [{name: registry-ca, configMap: {name: tessera-registry-ca}}]
{{- end -}}
{{- end -}}

{{- define "tessera.claims.args" -}}
{{- $claims := .Values.tessera.claims -}}
{{- $args := list -}}
{{- with $claims.driver }}{{ $args = append $args (printf "--claim-driver=%s" .) }}{{ end -}}
{{- if and $claims.driver (ne $claims.placement "controller") }}{{ $args = append $args (printf "--claim-placement=%s" $claims.placement) }}{{ end -}}
{{- toJson $args -}}
{{- end -}}

{{- /* The second selector of a DeviceClass, which keeps kube-scheduler's allocator away. */ -}}
{{- define "tessera.claims.guard" -}}
{{- if ne (index . 0).Values.tessera.claims.placement "scheduler" -}}
- cel:
    expression: {{ index . 1 }}
{{- end -}}
{{- end -}}

{{- /* The folders of a driver of claims, in the agents' pods: registration by the first, calls by the second. */ -}}
{{- define "tessera.claims.mounts" -}}
{{- if .Values.tessera.claims.driver -}}
{{- $root := include "tessera.folder" (list . "kubelet" "/var/lib/kubelet") -}}
- {name: claim-registry, mountPath: {{ $root }}/plugins_registry}
- {name: claim-driver, mountPath: {{ $root }}/plugins/{{ .Values.tessera.claims.driver }}}
{{- end -}}
{{- end -}}
{{- define "tessera.claims.volumes" -}}
{{- if .Values.tessera.claims.driver -}}
{{- $root := include "tessera.folder" (list . "kubelet" "/var/lib/kubelet") -}}
- {name: claim-registry, hostPath: {path: {{ $root }}/plugins_registry, type: Directory}}
- {name: claim-driver, hostPath: {path: {{ $root }}/plugins/{{ .Values.tessera.claims.driver }}, type: DirectoryOrCreate}}
{{- end -}}
{{- end -}}

{{- /* The names of image pull secrets, anywhere below a value, one a line. */ -}}
{{- define "tessera.secretsBelow" -}}
{{- if kindIs "map" . -}}
{{- range $key, $value := . -}}
{{- if and (eq $key "imagePullSecrets") (kindIs "slice" $value) }}{{ range $value }}{{ if kindIs "string" . }}{{ . }}{{ "\n" }}{{ end }}{{ end -}}
{{- else }}{{ include "tessera.secretsBelow" $value }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- define "tessera.pullSecrets" -}}
{{- $root := index . 0 -}}
{{- $names := concat (index . 1) $root.Values.tessera.driverPullSecrets -}}
{{- if eq (include "tessera.drivers.wanted" $root) "true" -}}
{{- $names = concat $names (include "tessera.secretsBelow" (pick $root.Values "driver" "toolkit" "daemonsets" "gds" "gdrcopy") | splitList "\n" | compact) -}}
{{- end -}}
{{- $names | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- /* Labels and annotations of an object that Helm makes after an installation, an upgrade or a rollback, and removes when done. */ -}}
{{- define "tessera.hook" -}}
{{- include "tessera.hook.metadata" (list (index . 0) (index . 1) "post-install,post-upgrade,post-rollback") }}
{{- end -}}

{{- /* The same of an object that exists only while the release is removed. */ -}}
{{- define "tessera.removal.hook" -}}
{{- include "tessera.hook.metadata" (list (index . 0) (index . 1) "pre-delete") }}
{{- end -}}

{{- define "tessera.hook.metadata" -}}
labels:
  app.kubernetes.io/part-of: tessera
  {{- include "tessera.labels" (index . 0) | nindent 2 }}
annotations:
  helm.sh/hook: {{ index . 2 }}
  helm.sh/hook-weight: {{ index . 1 | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- /* The format of a definition; refuses to put an older one in place of a newer one, which the cluster has. */ -}}
{{- define "tessera.format" -}}
{{- $name := index . 0 -}}
{{- $own := index . 1 -}}
{{- $there := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name | default dict -}}
{{- $format := dig "metadata" "annotations" "tessera.dev/format" "1" $there -}}
{{- if gt (int $format) (int $own) -}}
{{- fail (printf "CustomResourceDefinition %s: the cluster has format %s, this chart knows formats up to %s: a newer version of Tessera installed it. Install that version or a newer one; or set tessera.crds.install to false only if its notes say that this version can read its objects" $name $format $own) -}}
{{- end -}}
{{- $own -}}
{{- end -}}
