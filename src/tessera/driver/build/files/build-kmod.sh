#!/bin/sh
# Compiles the driver's modules for one kernel. Leaves in /build: out/, which is the root of what the image gets, and
# nvidia.run. See rhel.Containerfile.
set -eu
cd /build
. ./rhsm.sh

case "$TARGETARCH" in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "build-kmod: TARGETARCH=$TARGETARCH: write amd64 or arm64" >&2; exit 1 ;;
esac
headers=/usr/src/kernels/$KERNEL_VERSION
module_folder=out/lib/modules/$KERNEL_VERSION

say() { echo "build-kmod: $*"; }
fail() { echo "build-kmod: $*" >&2; exit 1; }

# 5.14.0-284.54.1.el9_2.aarch64+64k is built against kernel-64k-devel-5.14.0-284.54.1.el9_2.
find_headers() {
    [ -d "$headers" ] && return
    case "$KERNEL_VERSION" in
        *+64k) kernel=kernel-64k ;;
        *) kernel=kernel ;;
    esac
    package_version=${KERNEL_VERSION%+64k}
    package_version=${package_version%."$machine"}
    say "this image has no headers of $KERNEL_VERSION; they are looked for in its repositories"
    subscribed dnf -y install "$kernel-devel-$package_version" "$kernel-modules-core-$package_version" \
        gcc make kmod elfutils-libelf-devel curl ||
        fail "no headers of $KERNEL_VERSION: this is not the Driver Toolkit of that kernel, and no repository has $kernel-devel-$package_version"
    [ -d "$headers" ] || fail "$kernel-devel-$package_version has no $headers"
}

fetch() {
    url=$DOWNLOADS/$DRIVER_VERSION/NVIDIA-Linux-$machine-$DRIVER_VERSION.run
    curl -fsSL --retry 3 -o nvidia.run "$url" || fail "cannot fetch $url: is there such a version for $machine?"
    if [ -n "$RUN_SHA256" ]; then
        echo "$RUN_SHA256  nvidia.run" | sha256sum -c - || fail "$url is not the file with SHA-256 $RUN_SHA256"
    fi
    sh nvidia.run --extract-only --target source
}

compile() {
    case "$MODULES" in
        open) folder=source/kernel-open ;;
        proprietary) folder=source/kernel ;;
        *) fail "MODULES=$MODULES: write open or proprietary" ;;
    esac
    [ -d "$folder" ] || fail "driver $DRIVER_VERSION has no $MODULES modules"
    # The compiler of a toolkit may be newer than the kernel's own by a patch level.
    make -C "$folder" -j "$(nproc)" KERNEL_UNAME="$KERNEL_VERSION" SYSSRC="$headers" IGNORE_CC_MISMATCH=1 modules
    mkdir -p "$module_folder/extra/nvidia"
    cp "$folder"/*.ko "$module_folder/extra/nvidia/"
}

# A key of the builder's own making would be trusted by no machine, so without a key there is no signature.
sign() {
    if [ ! -s /run/secrets/signing_key ] || [ ! -s /run/secrets/signing_certificate ]; then
        say "no signing key: the modules are not signed and load only where Secure Boot is off"
        return
    fi
    for module in "$module_folder"/extra/nvidia/*.ko; do
        "$headers/scripts/sign-file" sha256 /run/secrets/signing_key /run/secrets/signing_certificate "$module"
    done
}

# modprobe in the image must find what the driver's modules stand on, if the node has not loaded it.
copy_dependencies() {
    mkdir -p "/lib/modules/$KERNEL_VERSION/extra"
    cp -r "$module_folder/extra/nvidia" "/lib/modules/$KERNEL_VERSION/extra/"
    depmod "$KERNEL_VERSION"
    for module in nvidia nvidia-uvm nvidia-modeset nvidia-drm nvidia-peermem; do
        modprobe --set-version "$KERNEL_VERSION" --show-depends "$module" 2>/dev/null || true
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r file; do
        mkdir -p "out$(dirname "$file")"
        cp "$file" "out$file"
    done
    for list in modules.order modules.builtin modules.builtin.modinfo; do
        if [ -e "/lib/modules/$KERNEL_VERSION/$list" ]; then
            cp "/lib/modules/$KERNEL_VERSION/$list" "$module_folder/"
        fi
    done
}

copy_firmware() {
    [ -d source/firmware ] || return 0
    mkdir -p "out/opt/lib/firmware/nvidia/$DRIVER_VERSION"
    cp source/firmware/*.bin "out/opt/lib/firmware/nvidia/$DRIVER_VERSION/"
}

find_headers
fetch
compile
sign
copy_dependencies
copy_firmware
mkdir -p out/etc
printf 'KERNEL_VERSION=%s\nDRIVER_VERSION=%s\n' "$KERNEL_VERSION" "$DRIVER_VERSION" >out/etc/tessera-driver-release
say "driver $DRIVER_VERSION for $KERNEL_VERSION, $MODULES modules"
