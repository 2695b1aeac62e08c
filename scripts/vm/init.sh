#!/bin/sh
# The first process of the machine that `make test-vm` boots: tests saggar as root and as an ordinary user, and prints the results
# in lines that begin with RESULT.
export PATH=/usr/bin

main() {
    mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
    mkdir -p /dev/pts /dev/shm
    mount -t devpts devpts /dev/pts; mount -t cgroup2 cgroup /sys/fs/cgroup
    as_root
    clock_jumps
    hung_disk
    switched_off
    mkdir -p /home/guest/.local; chown -R guest:guest /home/guest; rm -rf /tmp/*
    su guest -c '/init guest'
    say done
    poweroff -f
}

say() { echo "RESULT $*"; }
is() { if [ "$2" = "$3" ]; then say "ok $1"; else say "WRONG $1: $2, not $3"; fi; }
# between NAME VALUE LEAST MOST
between() { if [ "$2" -ge "$3" ] && [ "$2" -le "$4" ]; then say "ok $1"; else say "WRONG $1: $2, not $3 to $4"; fi; }
uptime_s() { cut -d. -f1 /proc/uptime; }
# Waits for a file, with a time limit.
await() { turns=0; while [ ! -e "$1" ] && [ $turns -lt 60 ]; do sleep 1; turns=$((turns + 1)); done; }

as_root() {
    saggar doctor --json > /tmp/doctor; is "ready as root" $? 0
    for limit in memory cpus pids; do
        grep -q "\"name\":\"$limit\",\"status\":\"supported\"[^}]*cgroup v2" /tmp/doctor; is "$limit by cgroup v2" $? 0
    done
    for mode in read-only workspace-write; do
        grep -q "\"name\":\"$mode\",\"status\":\"supported\"" /tmp/doctor; is "$mode" $? 0
    done
    # Kernels before 6.6 can't store the attributes it needs: then it must be refused, and never work partially.
    cd /workspace; saggar run --workspace . --fs scratch -- true 2> /dev/null; run=$?
    if grep -q '"name":"scratch","status":"supported"' /tmp/doctor; then is "scratch works" $run 0; else is "scratch is refused" $run 125; fi
    saggar run -- sh -c 'test "$(id -u)" = 1000 && test "$(cat /proc/self/cgroup)" = 0::/'
    is "a user, and no cgroup of the host's in sight" $? 0
    saggar run --workspace . -- sh -c 'echo made > file; echo hook > .git/hooks/x' 2> /dev/null; is "a hook is refused" $? 1
    is "the workspace is the owner's, without placeholders" "$(ls -A /workspace)" "$(echo file)"
    saggar run --memory 32M -- sh -c 'exec tail -c 1000000000 /dev/zero' 2> /dev/null; is "out of memory" $? 137
    saggar run -- sleep 1000 & sleep 5; kill -9 $!; saggar run -- true; is "a start after a kill" $? 0
    nothing_left
}

nothing_left() {
    is "no cgroup is left" "$(find /sys/fs/cgroup -name 'saggar-*')" ""
    is "no record is left" "$(ls /var/lib/saggar/sandboxes)" ""
}

# G09. Outside of this machine it would harm the host.
clock_jumps() {
    for jump in 86400 -86400; do
        begin=$(uptime_s); day=$(date +%j)
        # A program that keeps the supervisor awake, so that it reads its clock after the jump.
        saggar run --events /tmp/events$jump --timeout 8s -- sh -c 'while :; do echo; sleep 1; done' > /dev/null 2>&1 & pid=$!
        await /tmp/events$jump
        date -s "@$(($(date +%s) + jump))" > /dev/null
        wait $pid; is "G09 the clock jumped by $jump s, and time was up" $? 124
        is "G09 it did jump" "$([ "$(date +%j)" = "$day" ] || echo jumped)" jumped
        between "G09 at the deadline, by the clock that doesn't jump" $(($(uptime_s) - begin)) 8 25
    done
}

# G05. A writer to a frozen filesystem can't be killed until it is thawed.
hung_disk() {
    disk=$(grep -l second /sys/block/vd*/serial | cut -d/ -f4)
    mkdir -p /hung; mount -t ext4 "/dev/$disk" /hung; mkdir -p /hung/workspace; begin=$(uptime_s)
    saggar run --json --timeout 5s --workspace /hung/workspace -- sh -c 'echo > ready; while :; do echo x > file; done' > /tmp/hung & pid=$!
    await /hung/workspace/ready
    fsfreeze --freeze /hung
    wait $pid; is "G05 a program that can't be killed: its end is told" $? 124
    between "G05 and not waited for without end" $(($(uptime_s) - begin)) 5 90
    grep -q "the kernel can't kill a process" /tmp/hung; is "G05 the reason is told" $? 0
    is "G05 its record stays" "$(ls /var/lib/saggar/sandboxes | wc -l)" 1
    begin=$(uptime_s)
    saggar run -- true; is "G05 others start meanwhile" $? 0
    between "G05 in time" $(($(uptime_s) - begin)) 0 40
    fsfreeze --unfreeze /hung
    saggar run -- true; is "G05 and after it is over" $? 0
    nothing_left
    is "G05 no placeholder is left" "$(ls -A /hung/workspace)" "$(printf 'file\nready')"
    umount /hung; is "G05 nothing holds the disk" $? 0
}

# Enforcement rules that only this machine can check: see conformance/rules.toml.
switched_off() {
    insmod /procfiles.ko; is "files of /proc that other kernels have" $? 0
    SAGGAR_MUTATION_PROGRAM=/mutation/saggar SAGGAR_MUTATION_IN_MACHINE=1 /mutation/check --nocapture > /tmp/mutation 2>&1
    is "each rule that is left to this machine is missed when it is off" $? 0
    grep -E '^[a-z0-9/_.-]+ .*ms\)$|rules: |panicked|notices|fail' /tmp/mutation | while read -r line; do say "   $line"; done
}

as_guest() {
    saggar doctor --json > /tmp/doctor-guest; is "ready as an ordinary user" $? 0
    saggar run --memory 32M -- true 2> /dev/null; is "memory is refused there" $? 126
    saggar run --pids 6 -- sh -c 'for i in 1 2 3 4 5 6 7 8; do sleep 9 & done' 2> /dev/null; is "pids are not" $? 2
}

if [ "$1" = guest ]; then as_guest; else main; fi
