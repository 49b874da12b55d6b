#!/bin/sh
# Installs the driver for one kernel into an image of Ubuntu, while the image is built. See ubuntu.Containerfile.
set -eu

export DEBIAN_FRONTEND=noninteractive
branch=$DRIVER_BRANCH
flavour=$branch-server
cuda=https://developer.download.nvidia.com/compute/cuda/repos

say() { echo "install-ubuntu: $*"; }
fail() { echo "install-ubuntu: $*" >&2; exit 1; }
install() { apt-get install -y --no-install-recommends "$@"; }

# Without root apt cannot become its own user. Canonical's archive may be newer than the tag's version: pin.
prepare() {
    echo 'APT::Sandbox::User "root";' >/etc/apt/apt.conf.d/90-build
    if [ -n "$DRIVER_VERSION" ]; then
        for name in "nvidia-*-$flavour*" "libnvidia-*-$flavour" "nvidia-firmware-*"; do
            printf 'Package: %s\nPin: version %s*\nPin-Priority: 1001\n\n' "$name" "$DRIVER_VERSION"
        done >/etc/apt/preferences.d/90-driver-version
    fi
    apt-get update
    install ca-certificates curl kmod
}

modules() {
    case "$MODULES" in
        open) echo "linux-modules-nvidia-$flavour-open-$KERNEL_VERSION" ;;
        proprietary)
            # Objects are linked and get their signatures when they are installed.
            echo "linux-objects-nvidia-$flavour-$KERNEL_VERSION linux-modules-nvidia-$flavour-$KERNEL_VERSION"
            ;;
        *) fail "MODULES=$MODULES: write open or proprietary" ;;
    esac
    # Canonical has signatures for UEFI Secure Boot on amd64 only.
    if [ "$TARGETARCH" = amd64 ]; then echo "linux-signatures-nvidia-$KERNEL_VERSION"; fi
}

user_space() {
    # The same for both kinds of modules; its name means that it compiles none.
    echo "nvidia-headless-no-dkms-$flavour nvidia-utils-$flavour"
    echo "libnvidia-decode-$flavour libnvidia-encode-$flavour libnvidia-extra-$flavour libnvidia-gl-$flavour"
    if [ "$TARGETARCH" = amd64 ]; then echo "libnvidia-fbc1-$flavour"; fi
}

check_published() {
    apt-cache show "linux-modules-nvidia-$flavour-$KERNEL_VERSION" >/dev/null 2>&1 ||
        apt-cache show "linux-modules-nvidia-$flavour-open-$KERNEL_VERSION" >/dev/null 2>&1 ||
        fail "Canonical has no modules of branch $branch for kernel $KERNEL_VERSION (yet): no package linux-modules-nvidia-$flavour-$KERNEL_VERSION; they follow a kernel by days, and older branches end"
}

# One version in the kernel and around it: anything else fails on the node, with a worse message.
check_versions() {
    inside=$(modinfo -k "$KERNEL_VERSION" -F version nvidia) || fail "module nvidia was not made for $KERNEL_VERSION"
    around=$(dpkg-query -W -f '${Version}' "nvidia-utils-$flavour" | cut -d- -f1)
    [ "$inside" = "$around" ] || fail "the modules are of $inside, the libraries of $around; Canonical has them at different versions now, build again later"
    if [ -n "$DRIVER_VERSION" ] && [ "$inside" != "$DRIVER_VERSION" ]; then
        fail "asked for driver $DRIVER_VERSION, Canonical has $inside for $KERNEL_VERSION; ask for $inside or for branch $branch"
    fi
    version=$inside
}

# From branch 580 on NVIDIA's packages no longer carry the branch in their names.
nvswitch_packages() {
    if [ "$branch" -ge 580 ]; then suffix=""; else suffix="-$branch"; fi
    echo "nvidia-fabricmanager$suffix=$version* libnvidia-nscq$suffix=$version*"
    if [ "$branch" -ge 550 ]; then echo "nvidia-imex$suffix=$version*"; fi
    if [ "$branch" -ge 570 ]; then echo "nvlsm infiniband-diags"; fi
}

install_nvswitch() {
    if [ "$TARGETARCH" = arm64 ]; then folder=sbsa; else folder=x86_64; fi
    . /etc/os-release
    curl -fsSL -o /tmp/keyring.deb "$cuda/ubuntu$(echo "$VERSION_ID" | tr -d .)/$folder/cuda-keyring_1.1-1_all.deb"
    dpkg -i /tmp/keyring.deb
    rm /tmp/keyring.deb
    apt-get update
    # shellcheck disable=SC2046 # a list of words
    install $(nvswitch_packages)
    rm -f /etc/apt/sources.list.d/cuda*
}

# A node's folder may lie over the image's firmware, so it is kept at a second place too.
keep_firmware() {
    [ -d "/lib/firmware/nvidia/$version" ] || return 0
    mkdir -p "/opt/lib/firmware/nvidia/$version"
    cp "/lib/firmware/nvidia/$version"/*.bin "/opt/lib/firmware/nvidia/$version/"
}

prepare
check_published
# shellcheck disable=SC2046 # lists of words
install $(user_space) $(modules)
depmod "$KERNEL_VERSION"
check_versions
if [ "$NVSWITCH" = yes ]; then install_nvswitch; fi
keep_firmware
printf 'KERNEL_VERSION=%s\nDRIVER_VERSION=%s\n' "$KERNEL_VERSION" "$version" >/etc/tessera-driver-release
# The running image installs nothing: no archive, no lists, no boot files of the kernel package.
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /boot/*
say "driver $version for $KERNEL_VERSION, $MODULES modules"
