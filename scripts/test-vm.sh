#!/usr/bin/env bash
# Tests another kernel and other cgroups than this host's: boots Debian's cloud kernel in QEMU (software emulation is enough), with
# all controllers in cgroup v2, and runs saggar in it as root and as an ordinary user (scripts/vm/init.sh). Tests that would harm a
# host run there too: setting the clock, a hanging disk. Called by `make test-vm`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly USAGE='usage: test-vm.sh SAGGAR MUTATED-SAGGAR MUTATION-CHECK'
readonly SAGGAR=${1:?$USAGE} MUTATED=${2:?$USAGE} CHECK=${3:?$USAGE}
readonly DEADLINE=1200 # seconds; emulation on a busy machine is slow

main() {
    local kernel release
    kernel=$(find /boot -name 'vmlinuz-*-cloud-amd64' | sort -V | tail -n1)
    [[ -n $kernel ]] || fail "no Debian cloud kernel in /boot" "apt-get install linux-image-cloud-amd64"
    release=${kernel#/boot/vmlinuz-}
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    make_module "$work" "$release"
    make_initramfs "$work" "/lib/modules/$release/kernel"
    make_disks "$work"
    boot "$work" "$kernel" >"$work/log" 2>&1 || true
    check "$work/log"
}

make_module() {
    local headers=/usr/src/linux-headers-$2
    [[ -d $headers ]] || fail "the headers of kernel $2 are missing" "apt-get install linux-headers-$2"
    mkdir "$1/module"
    cp scripts/vm/procfiles.c "$1/module/"
    echo 'obj-m := procfiles.o' >"$1/module/Makefile"
    # Don't inherit the settings of the calling make.
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s -C "$headers" M="$1/module" modules >"$1/module/log" 2>&1 ||
        fail "the test module for /proc can't be built" "$(tail -n 20 "$1/module/log")"
}

# Just enough to load the disk's driver and switch to the real root.
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
# The order of the disks is undefined: the real root is the one with an init.
for disk in vda vdb; do
    /bin/busybox mount -t ext4 /dev/$disk /newroot
    [ ! -e /newroot/init ] || break
    /bin/busybox umount /newroot
done
exec /bin/busybox switch_root /newroot /init
INIT
    chmod 755 "$top/init"
    (cd "$top" && find . | cpio --quiet -o -H newc | gzip -1 >"$1/initramfs.gz")
}

make_disks() {
    local top=$1/root applet
    mkdir -p "$top"/{usr/bin,usr/sbin,usr/lib,proc,sys,dev,run,etc,root,home/guest,var/lib,workspace,mutation}
    mkdir -m 1777 "$top/tmp"
    cp /bin/busybox "$top/usr/bin/busybox"
    cp "$SAGGAR" "$top/usr/bin/saggar"
    cp "$MUTATED" "$top/mutation/saggar"
    cp "$MUTATED-full" "$top/mutation/saggar-full"
    cp "$CHECK" "$top/mutation/check"
    cp "$1/module/procfiles.ko" "$top/"
    # Debug information isn't needed at run time.
    strip "$top/mutation/"*
    for applet in sh cat chown cut date find fsfreeze grep head id insmod kill ls mkdir mount poweroff rm setpriv sleep su tail test touch \
        true umount unshare wc; do
        ln -s busybox "$top/usr/bin/$applet"
    done
    ln -s usr/bin "$top/bin"
    ln -s usr/sbin "$top/sbin"
    ln -s usr/lib "$top/lib"
    printf 'root:x:0:0::/root:/bin/sh\nguest:x:1000:1000::/home/guest:/bin/sh\n' >"$top/etc/passwd"
    printf 'root:x:0:\nguest:x:1000:\n' >"$top/etc/group"
    install -m 755 scripts/vm/init.sh "$top/init"
    mke2fs -q -t ext4 -d "$top" -F "$1/disk" 512M >/dev/null
    mke2fs -q -t ext4 -F "$1/second" 32M >/dev/null
}

boot() {
    local khz
    # Without this the machine, which has no early timer, may never finish calibrating its clock.
    khz=$(awk -F': ' '/cpu MHz/ { printf "%d", $2 * 1000; exit }' /proc/cpuinfo)
    timeout -s KILL "$DEADLINE" qemu-system-x86_64 -M microvm,accel=tcg -cpu max -m 1024 -smp 2 -no-reboot \
        -kernel "$2" -initrd "$1/initramfs.gz" -append "console=ttyS0 panic=-1 quiet tsc_early_khz=$khz" \
        -drive "id=disk,file=$1/disk,format=raw,if=none" -device virtio-blk-device,drive=disk \
        -drive "id=second,file=$1/second,format=raw,if=none" -device virtio-blk-device,drive=second,serial=second \
        -serial stdio -monitor none -display none </dev/null
}

check() {
    local right wrong
    tr -d '\r' <"$1" | sed -n 's/^RESULT //p'
    right=$(grep -c '^RESULT ok' "$1" || true)
    wrong=$(grep -c '^RESULT WRONG' "$1" || true)
    grep -q '^RESULT done' "$1" || fail "the machine did not finish" "$(tail -n 20 "$1")"
    echo "$right passed, $wrong failed"
    ((wrong == 0))
}

fail() {
    echo "error: $1" >&2
    echo "  help: $2" >&2
    exit 1
}

main
