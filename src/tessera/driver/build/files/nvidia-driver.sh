#!/bin/sh
# Brings the driver of this image into the machine's kernel, shows its files to the node, and stays until it is stopped.
#
#   nvidia-driver init                    load, mount, stay; what the DaemonSet runs
#   nvidia-driver reload_nvidia_peermem   load GPUDirect RDMA as soon as the network cards' driver is there; stay
#   nvidia-driver probe_nvidia_peermem    0 if it is loaded, or if there is nothing that it could serve
#
# What the node must give: privileges, /run/nvidia (mount propagation Bidirectional), the host's /sys, and, where the
# folder of firmware is a mount of its own, /run/nvidia/driver/lib/firmware as /lib/firmware. Parameters of a module
# stand in /drivers/<module>.conf. Nothing is fetched from a network: all was installed when the image was built.
#
# Order: the root is mounted before a module is loaded, because the kernel looks for firmware below it, in the host's
# own view of the files, when the first card is opened.
#
# A driver of the same version that is loaded already is kept: the container was restarted, the cards are in use.
# TRIAL_ROOT is put before every folder of the machine, so that this can be tried without one.
set -eu

root=${TRIAL_ROOT:-}
run=$root/run/nvidia
driver_root=$run/driver
pid_file=$run/nvidia-driver.pid
sys=$root/sys
release=$root/etc/tessera-driver-release
modprobe_folder=$root/etc/modprobe.d

# KERNEL_VERSION and DRIVER_VERSION, as the build found them.
if [ ! -r "$release" ]; then
    echo "nvidia-driver: $release is missing; this image was not built by its Containerfile" >&2
    exit 1
fi
. "$release"

say() { echo "nvidia-driver: $*"; }
fail() { echo "nvidia-driver: $*" >&2; exit 1; }

check_kernel() {
    running=$(uname -r)
    [ "$running" = "$KERNEL_VERSION" ] ||
        fail "this image is for kernel $KERNEL_VERSION, the node runs $running; it needs the image for its own kernel"
}

loaded() { [ -d "$sys/module/$1" ]; }

# Version of the driver in the kernel; empty if there is none.
loaded_version() {
    if [ -r "$sys/module/nvidia/version" ]; then cat "$sys/module/nvidia/version"; fi
}

# /drivers/nvidia-uvm.conf -> /etc/modprobe.d/nvidia-uvm.conf, all its lines as options of one module.
write_options() {
    for module in nvidia nvidia-uvm nvidia-modeset nvidia-peermem; do
        given=$root/drivers/$module.conf
        [ -s "$given" ] || continue
        mkdir -p "$modprobe_folder"
        printf 'options %s %s\n' "$module" "$(tr '\n' ' ' <"$given")" >"$modprobe_folder/$module.conf"
        say "options of $module: $(tr '\n' ' ' <"$given")"
    done
}

mounted() { grep -qs " $driver_root\(/[^ ]*\)\? " "$root/proc/self/mountinfo"; }

# A root that an earlier container left is of no use: its files are gone.
unmount_root() {
    # Several may lie on top of each other.
    tries=0
    while mounted && [ "$tries" -lt 8 ]; do
        umount -l -R "$driver_root" || fail "cannot unmount $driver_root"
        tries=$((tries + 1))
    done
}

# A container does not see the host's SELinux in its own /sys, but, with hostPID, in that of the first process.
selinux_present() {
    [ -e "$sys/fs/selinux/enforce" ] || [ -e "$root/proc/1/root/sys/fs/selinux/enforce" ]
}

mount_root() {
    mkdir -p "$driver_root"
    # Without this the node would see /sys of this container twice, and unmounting here would unmount it there.
    mount --make-runbindable "$sys"
    mount --make-private "$sys"
    mount --rbind "${root:-/}" "$driver_root"
    # Where the host enforces SELinux, containers may only use device files that are labelled for them.
    if selinux_present && command -v chcon >/dev/null; then
        chcon -R -t container_file_t "$driver_root/dev" || say "device files keep their SELinux label"
    fi
}

# The kernel reads firmware from the host's files; the path may be set only while nobody else has set one.
offer_firmware() {
    target=$driver_root/lib/firmware/nvidia/$DRIVER_VERSION
    kept=$root/opt/lib/firmware/nvidia/$DRIVER_VERSION
    if [ -d "$kept" ] && [ ! -e "$target/.complete" ]; then
        mkdir -p "$target"
        cp "$kept"/*.bin "$target/"
        : >"$target/.complete"
    fi
    path=$sys/module/firmware_class/parameters/path
    if [ ! -w "$path" ]; then
        say "the path of firmware cannot be set; cards whose driver needs firmware will not start"
    elif [ -n "$(tr -d '[:space:]' <"$path")" ]; then
        say "firmware is looked for in $(cat "$path"), as set before; it stays"
    else
        printf '%s' "$driver_root/lib/firmware" >"$path" || say "the path of firmware cannot be set"
    fi
}

load_modules() {
    # Other kernels have some of these built in, or none: the driver's own modules decide whether that matters.
    for module in i2c_core ipmi_msghandler ipmi_devintf video; do
        modprobe -q "$module" || true
    done
    modprobe nvidia || fail "module nvidia $DRIVER_VERSION was refused (see dmesg): no card that it serves, or no valid signature"
    modprobe nvidia-uvm || fail "module nvidia-uvm was refused; see dmesg"
    modprobe nvidia-modeset || fail "module nvidia-modeset was refused; see dmesg"
    if [ "${GPU_DIRECT_RDMA_ENABLED:-false}" = true ] && mellanox_present; then
        modprobe nvidia-peermem || say "module nvidia-peermem was refused; GPUDirect RDMA is off"
    fi
}

mellanox_present() { grep -qsx 0x15b3 "$sys"/bus/pci/devices/*/vendor; }

# NVSwitches of the fourth generation and before tell themselves in /proc; later ones are InfiniBand devices.
nvswitch_present() { [ -n "$(ls -A "$root/proc/driver/nvidia-nvswitch/devices" 2>/dev/null)" ]; }
nvlink5_present() { grep -qs SW_MNG "$sys"/class/infiniband/*/device/vpd; }

start_fabric() {
    folder=$root/usr/share/nvidia/nvswitch
    if nvlink5_present; then
        command -v nvidia-fabricmanager-start.sh >/dev/null ||
            fail "this node has NVSwitches, but the image has no fabric manager; build it with NVSWITCH=yes"
        for module in mlx5_core ib_umad; do
            modprobe "$module" || fail "module $module is needed for the NVSwitches of this node; load it on the host"
        done
        nvidia-fabricmanager-start.sh --mode start \
            --fm-config-file "$folder/fabricmanager.cfg" \
            --fm-pid-file "$root/var/run/nvidia-fabricmanager/nv-fabricmanager.pid" \
            --nvlsm-config-file "$root/usr/share/nvidia/nvlsm/nvlsm.conf" \
            --nvlsm-pid-file "$root/var/run/nvidia-fabricmanager/nvlsm.pid"
    elif nvswitch_present; then
        command -v nv-fabricmanager >/dev/null ||
            fail "this node has NVSwitches, but the image has no fabric manager; build it with NVSWITCH=yes"
        nv-fabricmanager -c "$folder/fabricmanager.cfg"
    fi
}

start_daemons() {
    nvidia-persistenced --persistence-mode || say "nvidia-persistenced did not start; cards are opened anew each time"
    start_fabric
}

# Ends a daemon by its pid file and waits up to five seconds for it.
stop_daemon() {
    [ -r "$1" ] || return 0
    pid=$(cat "$1")
    kill -TERM "$pid" 2>/dev/null || return 0
    tries=0
    while kill -0 "$pid" 2>/dev/null; do
        tries=$((tries + 1))
        if [ "$tries" -gt 50 ]; then
            say "process $pid of $1 does not end"
            return 1
        fi
        sleep 0.1
    done
}

stop_daemons() {
    for name in nvidia-persistenced/nvidia-persistenced nvidia-fabricmanager/nv-fabricmanager nvidia-fabricmanager/nvlsm; do
        stop_daemon "$root/var/run/$name.pid" || return 1
    done
}

# Dependants first. rmmod refuses a module that is in use, and then nothing more is tried.
unload_modules() {
    for module in nvidia_drm nvidia_modeset nvidia_peermem nvidia_uvm nvidia; do
        loaded "$module" || continue
        rmmod "$module" || { say "module $module is in use; the driver stays loaded"; return 1; }
    done
}

# Whatever stands now, nothing of ours is left, unless the driver is in use: then all is left for the next container.
shut_down() {
    stop_daemons && unload_modules || return 1
    unmount_root
    rm -f "$pid_file"
}

stay() {
    sleep infinity &
    waiting=$!
    # KILL: a child that has just been forked may still ignore what its parent traps.
    trap 'say "stopping"; kill -KILL "$waiting" 2>/dev/null; if shut_down; then exit 0; else exit 1; fi' TERM INT HUP QUIT
    say "driver $DRIVER_VERSION serves on $KERNEL_VERSION"
    while kill -0 "$waiting" 2>/dev/null; do
        wait "$waiting" || true
    done
}

init() {
    check_kernel
    mkdir -p "$run"
    exec 9>"$pid_file"
    flock -n 9 || fail "another container on this node is at work on the driver ($pid_file is locked)"
    trap 'exit 143' TERM INT HUP QUIT # the first process of a container gets no signal that it does not ask for
    echo $$ >&9
    unmount_root
    present=$(loaded_version)
    if [ "$present" = "$DRIVER_VERSION" ]; then
        say "driver $present is loaded already and stays"
        mount_root
        offer_firmware
    else
        if [ -n "$present" ] || loaded nvidia; then
            say "driver ${present:-of an unknown version} is loaded and is replaced"
            stop_daemons && unload_modules || fail "the driver ${present:-} in the kernel is in use; end what uses the cards of this node"
        fi
        trap 'status=$?; trap - EXIT; [ "$status" = 0 ] || shut_down || true; exit "$status"' EXIT
        write_options
        mount_root
        offer_firmware
        load_modules
        trap - EXIT
    fi
    start_daemons
    stay
}

reload_nvidia_peermem() {
    until loaded nvidia && loaded mlx5_core &&
        { [ "${USE_HOST_MOFED:-false}" = true ] || [ -e "$root/run/mellanox/drivers/.driver-ready" ]; }; do
        sleep 2
    done
    write_options
    chroot "$driver_root" modprobe nvidia-peermem || fail "module nvidia-peermem was refused; see dmesg"
    exec sleep infinity
}

probe_nvidia_peermem() {
    loaded mlx5_core || return 0
    loaded nvidia_peermem || fail "module nvidia-peermem is not loaded"
}

case "${1:-}" in
    init) init ;;
    reload_nvidia_peermem) reload_nvidia_peermem ;;
    probe_nvidia_peermem) probe_nvidia_peermem ;;
    *) fail "unknown command '${1:-}'; use init, reload_nvidia_peermem or probe_nvidia_peermem" ;;
esac
