#!/bin/sh
# What the Job runs: builds one image with buildah, without root, and pushes it. Arguments are those of buildah build.
#
#   TARGET        registry/path/image:tag
#   ARCHITECTURE  amd64 or arm64
#   OTHER         the other architecture, if its image has the same tag: then the tag becomes an index of both
#   TLS_VERIFY    true or false
#
# Folders: /context (Containerfile and scripts), /auth/push, /auth/pull (config.json), /certs (*.crt), /secrets.
# The digest of what was pushed is the pod's last word, in /dev/termination-log. TRIAL_ROOT is put before every folder,
# so that this can be tried outside of a pod.
set -eu

root=${TRIAL_ROOT:-}

say() { echo "build: $*"; }
fail() { echo "build: $*" >&2; exit 1; }

# Files of a ConfigMap are links, and COPY would copy links.
work=$(mktemp -d)
scratch=$(mktemp -d)
cp -L "$root"/context/* "$work/"

verify="--tls-verify=$TLS_VERIFY"
push_auth=$root/auth/push/config.json
pull_auth=$root/auth/pull/config.json
[ -s "$pull_auth" ] || pull_auth=$push_auth

# Each of these may be missing; then its option is left out.
with_file() { if [ -s "$1" ]; then echo "$2"; fi; }
pull_options="$verify $(with_file "$pull_auth" "--authfile=$pull_auth")"
push_options="$verify $(with_file "$push_auth" "--authfile=$push_auth")"
if ls "$root"/certs/*.crt >/dev/null 2>&1; then
    pull_options="$pull_options --cert-dir=$root/certs"
    push_options="$push_options --cert-dir=$root/certs"
fi
secrets=""
for secret in rhsm_org rhsm_activationkey signing_key signing_certificate; do
    if [ -s "$root/secrets/$secret" ]; then secrets="$secrets --secret=id=$secret,src=$root/secrets/$secret"; fi
done

# Another architecture's image under the same tag must stay; an answer that is no answer must not pass for "none".
keep_other() {
    [ -n "${OTHER:-}" ] || return 0
    # shellcheck disable=SC2086 # lists of options
    if other=$(buildah pull --quiet --platform "linux/$OTHER" $push_options "docker://$TARGET" 2>"$scratch/pull-error"); then
        found=$(buildah inspect --type image --format '{{.OCIv1.Architecture}}' "$other")
        if [ "$found" = "$OTHER" ]; then
            say "keeping the image for $OTHER under the tag"
            buildah manifest add both "$other"
        fi
    elif ! grep -qi -e 'manifest unknown' -e 'name unknown' -e 'not found' -e 'no image found' "$scratch/pull-error"; then
        cat "$scratch/pull-error" >&2
        fail "whether $TARGET has an image for $OTHER is not known; nothing was pushed"
    fi
}

say "building for $ARCHITECTURE"
# shellcheck disable=SC2086 # lists of options
buildah build --isolation=chroot --format=oci --layers=false $pull_options $secrets "$@" --tag made --file "$work/Containerfile" "$work"
say "pushing $TARGET"
if [ -n "${OTHER:-}" ]; then
    buildah manifest create both
    buildah manifest add both made
    keep_other
    # shellcheck disable=SC2086 # lists of options
    buildah manifest push --all $push_options --digestfile "$scratch/digest" both "docker://$TARGET"
else
    # shellcheck disable=SC2086 # lists of options
    buildah push $push_options --digestfile "$scratch/digest" made "docker://$TARGET"
fi
say "pushed $TARGET as $(cat "$scratch/digest")"
cp "$scratch/digest" "$root/dev/termination-log"
