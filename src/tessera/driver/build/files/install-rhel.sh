#!/bin/sh
# Installs the driver's libraries and programs into a UBI that has its modules already. See rhel.Containerfile.
set -eu
. /tmp/rhsm.sh

branch=${DRIVER_VERSION%%.*}
cuda=https://developer.download.nvidia.com/compute/cuda/repos

say() { echo "install-rhel: $*"; }

# The installer calls one option by two names, depending on its age.
without_modules() {
    if sh /mnt/build/nvidia.run --advanced-options 2>/dev/null | grep -q -e --no-kernel-modules; then
        echo --no-kernel-modules
    else
        echo --no-kernel-module
    fi
}

install_libraries() {
    sh /mnt/build/nvidia.run --silent --ui=none --accept-license --no-questions --no-backup --no-nouveau-check \
        "$(without_modules)" || { tail -n 50 /var/log/nvidia-installer.log >&2; exit 1; }
    rm -f /var/log/nvidia-installer.log
}

# From branch 580 on NVIDIA's packages no longer carry the branch in their names.
nvswitch_packages() {
    if [ "$branch" -ge 580 ]; then
        echo "nvidia-fabricmanager-$DRIVER_VERSION libnvidia-nscq-$DRIVER_VERSION nvidia-imex-$DRIVER_VERSION"
    else
        echo "nvidia-fabric-manager-$DRIVER_VERSION libnvidia-nscq-$branch-$DRIVER_VERSION"
        if [ "$branch" -ge 570 ]; then echo "nvidia-imex-$branch-$DRIVER_VERSION"; fi
    fi
    if [ "$branch" -ge 570 ]; then echo "infiniband-diags nvlsm"; fi
}

install_nvswitch() {
    . /etc/os-release
    if [ "$TARGETARCH" = arm64 ]; then folder=sbsa; else folder=x86_64; fi
    curl -fsSL -o /etc/yum.repos.d/cuda.repo "$cuda/rhel${VERSION_ID%%.*}/$folder/cuda-rhel${VERSION_ID%%.*}.repo"
    # Some of these need packages that only a subscription has; the message of dnf names them.
    # shellcheck disable=SC2046 # a list of words
    subscribed dnf -y install --setopt=install_weak_deps=False $(nvswitch_packages)
    rm -f /etc/yum.repos.d/cuda.repo
}

dnf -y install --setopt=install_weak_deps=False kmod
depmod "$KERNEL_VERSION"
install_libraries
if [ "$NVSWITCH" = yes ]; then install_nvswitch; fi
dnf clean all
say "driver $DRIVER_VERSION for $KERNEL_VERSION"
