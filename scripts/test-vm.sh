#!/usr/bin/env bash
# Another kernel and other cgroups than this host's: boots Debian's cloud kernel in QEMU (software emulation will do), with
# all controllers in cgroup v2, and runs saggar in there as root and as an ordinary user. Called by `make test-vm`.
set -euo pipefail

readonly SAGGAR=${1:?usage: test-vm.sh PATH-OF-SAGGAR}
readonly DEADLINE=600 # seconds; emulation on a busy machine is slow

main() {
    local kernel modules
    kernel=$(find /boot -name 'vmlinuz-*-cloud-amd64' | sort -V | tail -n1)
    [[ -n $kernel ]] || fail "there is no Debian cloud kernel in /boot" "apt-get install linux-image-cloud-amd64"
    modules=/lib/modules/${kernel#/boot/vmlinuz-}/kernel
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    make_initramfs "$work" "$modules"
    make_disk "$work"
    boot "$work" "$kernel" >"$work/log" 2>&1 || true
    check "$work/log"
}

# Just enough to load the disk's driver and go to the real root.
make_initramfs() {
    local top=$1/initramfs module
    mkdir -p "$top"/{bin,proc,dev,newroot,modules}
    cp /bin/busybox "$top/bin/busybox"
    for module in virtio virtio_ring virtio_mmio virtio_blk overlay; do
        find "$2" -name "$module.ko" -exec cp {} "$top/modules/" \;
    done
    cat >"$top/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
for module in virtio virtio_ring virtio_mmio virtio_blk overlay; do
    [ ! -e /modules/$module.ko ] || /bin/busybox insmod /modules/$module.ko
done
/bin/busybox mount -t ext4 /dev/vda /newroot
exec /bin/busybox switch_root /newroot /init
INIT
    chmod 755 "$top/init"
    (cd "$top" && find . | cpio --quiet -o -H newc | gzip -1 >"$1/initramfs.gz")
}

make_disk() {
    local top=$1/root applet
    mkdir -p "$top"/{usr/bin,usr/sbin,usr/lib,proc,sys,dev,run,etc,root,home/guest,var/lib,workspace}
    mkdir -m 1777 "$top/tmp"
    cp /bin/busybox "$top/usr/bin/busybox"
    cp "$SAGGAR" "$top/usr/bin/saggar"
    for applet in sh cat head tail sleep id grep wc test touch mkdir mount true unshare find ls kill su poweroff; do
        ln -s busybox "$top/usr/bin/$applet"
    done
    ln -s usr/bin "$top/bin"
    ln -s usr/sbin "$top/sbin"
    ln -s usr/lib "$top/lib"
    printf 'root:x:0:0::/root:/bin/sh\nguest:x:1000:1000::/home/guest:/bin/sh\n' >"$top/etc/passwd"
    printf 'root:x:0:\nguest:x:1000:\n' >"$top/etc/group"
    cat >"$top/init" <<'INIT'
#!/bin/sh
export PATH=/usr/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts; mount -t cgroup2 cgroup /sys/fs/cgroup
say() { echo "RESULT $*"; }
is() { if [ "$2" = "$3" ]; then say "ok $1"; else say "WRONG $1: $2, not $3"; fi; }
root() { saggar doctor --json > /tmp/doctor; is "ready as root" $? 0
    for limit in memory cpus pids; do grep -q "\"name\":\"$limit\",\"status\":\"supported\"[^}]*cgroup v2" /tmp/doctor; is "$limit by cgroup v2" $? 0; done
    for mode in read-only workspace-write; do grep -q "\"name\":\"$mode\",\"status\":\"supported\"" /tmp/doctor; is "$mode" $? 0; done
    # Kernels before 6.6 can't keep the marks it needs: then it must be refused, and never half-work.
    cd /workspace; saggar run --workspace . --fs scratch -- true 2> /dev/null; run=$?
    if grep -q '"name":"scratch","status":"supported"' /tmp/doctor; then is "scratch works" $run 0; else is "scratch is refused" $run 125; fi
    saggar run -- sh -c 'test "$(id -u)" = 1000 && test "$(cat /proc/self/cgroup)" = 0::/'; is "a user, and no cgroup of the host's in sight" $? 0
    cd /workspace; saggar run --workspace . -- sh -c 'echo made > file; echo hook > .git/hooks/x' 2> /dev/null; is "a hook is refused" $? 1
    is "the workspace is the owner's, without placeholders" "$(ls -A /workspace)" "$(echo file)"
    saggar run --memory 32M -- sh -c 'exec tail -c 1000000000 /dev/zero' 2> /dev/null; is "out of memory" $? 137
    saggar run -- sleep 1000 & sleep 5; kill -9 $!; saggar run -- true; is "a start after a kill" $? 0
    is "no cgroup is left" "$(find /sys/fs/cgroup -name 'saggar-*')" ""
    is "no record is left" "$(ls /var/lib/saggar/sandboxes)" ""; }
guest() { saggar doctor --json > /tmp/doctor-guest; is "ready as an ordinary user" $? 0
    saggar run --memory 32M -- true 2> /dev/null; is "memory is refused there" $? 126
    saggar run --pids 6 -- sh -c 'for i in 1 2 3 4 5 6 7 8; do sleep 9 & done' 2> /dev/null; is "pids are not" $? 2; }
case $1 in
guest) guest ;;
*)
    root
    mkdir -p /home/guest/.local; /usr/bin/busybox chown -R guest:guest /home/guest; /usr/bin/busybox rm -f /tmp/*
    su guest -c '/init guest'
    say done
    poweroff -f
    ;;
esac
INIT
    chmod 755 "$top/init"
    mke2fs -q -t ext4 -d "$top" -F "$1/disk" 256M >/dev/null
}

boot() {
    local khz
    # Without it the machine, which has no early timer, may never find out how fast it is.
    khz=$(awk -F': ' '/cpu MHz/ { printf "%d", $2 * 1000; exit }' /proc/cpuinfo)
    timeout -s KILL "$DEADLINE" qemu-system-x86_64 -M microvm,accel=tcg -cpu max -m 1024 -smp 2 -no-reboot \
        -kernel "$2" -initrd "$1/initramfs.gz" -append "console=ttyS0 panic=-1 quiet tsc_early_khz=$khz" \
        -drive "id=disk,file=$1/disk,format=raw,if=none" -device virtio-blk-device,drive=disk \
        -serial stdio -monitor none -display none </dev/null
}

check() {
    local right wrong
    tr -d '\r' <"$1" | sed -n 's/^RESULT //p'
    right=$(grep -c '^RESULT ok' "$1" || true)
    wrong=$(grep -c '^RESULT WRONG' "$1" || true)
    grep -q '^RESULT done' "$1" || fail "the machine did not get to the end" "$(tail -n 20 "$1")"
    echo "$right passed, $wrong failed"
    ((wrong == 0))
}

fail() {
    echo "error: $1" >&2
    echo "  help: $2" >&2
    exit 1
}

main
