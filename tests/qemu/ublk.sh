# Runs in the guest: serves the LUKS2 volume /dev/vda as disks of this kernel (ublk). It prints "@ NAME ok" for each
# part, or "@ NAME failed WHY"; in the end "@ disk read SHA256" of the whole disk, or "@ disk failed WHY".
# The volume has blocks of 4096 bytes and is a multiple of 16 MiB long.
log=/run/log
disk=/dev/ublkb3
queue=/sys/block/ublkb3/queue
luks="/dev/vda --key-file pass"
plain="--type plain --cipher aes-xts-plain64 --key-size 256 --key-file /run/key"
# Not those of busybox, which know less.
blkdiscard=/usr/sbin/blkdiscard
dd=/usr/sbin/dd
setpriv=/usr/sbin/setpriv
# The archive of the guest has a root for its owner only.
chmod 755 /

why() { tr '\n' ' ' <"$log"; }
part() {
    name=$1
    shift
    if "$@" 2>/run/errors </dev/null >/run/said; then
        echo "@ $name ok"
    else
        echo "@ $name failed $(tr '\n' ' ' </run/errors) $(tr '\n' ' ' </run/said) $(why)"
    fi
}
serve() {
    : >"$log"
    ./blockyard serve "$@" >"$log" 2>&1 &
    server=$!
}
# Waits until the server says that it serves; fails if it ends.
is_up() {
    while ! grep -q '^serving ' "$log"; do
        kill -0 "$server" && usleep 50000 || return
    done
}
refuses() { serve "$@" && ! is_up && ! wait "$server"; }
says() { grep -q "$1" "$log"; }

absent() { refuses $luks --ublk=3 && says 'modprobe ublk_drv'; }

# The kernel knows what the volume can do, and the server is limited.
facts() {
    serve $luks --ublk=3 --allow-discards && is_up && says " at $disk\$" &&
        grep -q '^Seccomp:.2$' "/proc/$server/status" &&
        [ "$(cat $queue/logical_block_size) $(cat $queue/discard_max_bytes) $(cat $queue/write_zeroes_max_bytes)" = \
            "4096 2147483648 134217728" ] &&
        [ "$(cat $queue/fua) $(cat $queue/write_cache) $(cat $queue/../ro)" = "1 write back 0" ]
}

# Blocks that are dropped or cleared, beside others that stay.
ranges() {
    cat kernel.noise kernel.noise >/run/source &&
        dd if=/run/source of=$disk bs=1M oflag=direct status=none &&
        $blkdiscard -z -o 8192 -l 1228800 $disk &&
        dd if=/dev/zero of=/run/source bs=4096 seek=2 count=300 conv=notrunc status=none &&
        dd if=$disk iflag=direct bs=1M count=2 status=none | cmp - /run/source &&
        $blkdiscard -o 1835008 -l 262144 $disk &&
        dd if=$disk iflag=direct bs=256k count=7 status=none | cmp -n 1835008 - /run/source
}

# Write through each of the ways to stable storage.
stable() {
    $dd if=kernel.noise of=$disk bs=4096 count=4 oflag=direct,dsync conv=notrunc status=none &&
        dd if=kernel.noise of=$disk bs=64k conv=fsync,notrunc status=none &&
        dd if=$disk iflag=direct bs=64k count=16 status=none | cmp - kernel.noise
}

files() {
    mkfs.ext4 -q -F $disk && mkdir -p /run/fs && mount $disk /run/fs && cp -r tree /run/fs/ &&
        dd if=kernel.noise of=/run/fs/synced bs=64k conv=fsync status=none &&
        umount /run/fs && e2fsck -fn $disk
}

# One writer rewrites its own MiB at the end of the disk, and reads it back past the page cache.
write_until_stopped() {
    round=0
    cat kernel.noise kernel.noise >/run/source
    while [ ! -e /run/stop ]; do
        round=$((round + 1))
        from=$(((round * 37 + $1 * 50) % 256))
        at=$((size_mib - 1 - $1))
        dd if=/run/source of=$disk bs=4096 skip=$from seek=$((at * 256)) count=256 conv=notrunc,fsync status=none &&
            dd if=$disk iflag=direct bs=64k skip=$((at * 16)) count=16 status=none of="/run/read.$1" &&
            cmp -n 1048576 "/run/read.$1" /run/source 0 $((from * 4096)) || echo "writer $1, round $round"
        echo "$round" >"/run/round.$1"
    done 2>"/run/errors.$1" >&2
}
passes() { cat /run/round.0 /run/round.1 2>/dev/null | awk '{ all += $1 } END { print all + 0 }'; }
go_on() {
    until=$(($(passes) + 4))
    while [ "$(passes)" -lt $until ]; do usleep 50000; done
}

# Servers are killed under load. The file system stays mounted, and no request fails.
kills() {
    size_mib=$(($(blockdev --getsize64 $disk) / 1048576))
    rm -f /run/stop /run/round.*
    mount -o ro $disk /run/fs || return
    write_until_stopped 0 &
    one=$!
    write_until_stopped 1 &
    two=$!
    for kill in 1 2 3; do
        go_on && kill -9 "$server"
        wait "$server"
        serve $luks --ublk=3 --allow-discards && is_up || return
    done
    go_on
    touch /run/stop
    wait $one $two
    cmp /run/fs/synced kernel.noise && umount /run/fs && ! cat /run/errors.0 /run/errors.1 | grep .
}

# A disk that waits is not given to another volume, nor to the same one with other properties. It goes on waiting if a
# server fails that was to take it over.
others() {
    kill -9 "$server"
    wait "$server"
    truncate -s 80M /run/other && refuses /run/other $plain --ublk=3 &&
        says 'served another volume' &&
        refuses $luks --ublk=3 -r --allow-discards && says 'another block size, --read-only' &&
        refuses $luks --ublk=3 --allow-discards --control /dev/null && says 'not a socket' && [ -e $disk ] &&
        refuses $luks --ublk=1048576 && says 'from 0 to 1048575' &&
        serve $luks --ublk=3 --allow-discards && is_up && e2fsck -fn $disk && serving=$server &&
        refuses /run/other $plain --ublk=3 && says "process "
}

# The end of the server removes the disk.
ends() {
    sha=$(dd if=$disk iflag=direct bs=64k status=none | sha256sum) && kill "$serving" && wait "$serving" &&
        ! [ -e $disk ] && ! [ -e /dev/ublkc3 ]
}

# A disk waits for its own key and its own file, and is taken over when its volume has grown. A server that may start
# too few threads does not harm it, at whatever step it fails.
left() {
    kill -9 "$server"
    wait "$server"
}
same() { [ "$(blockdev --getsize64 /dev/ublkb4)" = 33554432 ] && cmp -n 1048576 kernel.noise /dev/ublkb4; }
takeovers() {
    tail -c 32 kernel.noise >/run/key2 && truncate -s 32M /run/own || return
    serve /run/own $plain --ublk=4 --control /run/control4 && is_up &&
        dd if=kernel.noise of=/dev/ublkb4 bs=64k conv=fsync,notrunc status=none &&
        truncate -s 48M /run/own && ./blockyard resize /run/control4 || return
    left
    refuses /run/own ${plain}2 --ublk=4 && says 'another key' &&
        refuses /run/own $plain --skip 8 --ublk=4 && says 'another key, cipher, offset' &&
        cp /run/own /run/copy && mv /run/own /run/first && mv /run/copy /run/own &&
        refuses /run/own $plain --ublk=4 && says 'file or table' && mv /run/first /run/own || return
    mkdir -p /run/groups && mount -t cgroup2 none /run/groups && echo +pids >/run/groups/cgroup.subtree_control &&
        mkdir /run/groups/few || return
    refused=0
    for threads in 3 4 5 6 7 8 9 10; do
        echo $threads >/run/groups/few/pids.max
        : >"$log"
        sh -c 'echo $$ >/run/groups/few/cgroup.procs && exec ./blockyard serve "$@"' - /run/own $plain --threads 0 \
            --ublk=4 >"$log" 2>&1 &
        server=$!
        if is_up; then break; fi
        wait "$server"
        [ -e /dev/ublkb4 ] && says error || return
        refused=$((refused + 1))
    done
    [ $refused -gt 1 ] && is_up && same && left
    serve /run/own $plain --ublk=4 && is_up && same
}

# A server starts while another one removes the disk of this number.
replaced() {
    for volume in /run/other /run/own; do
        ending=$server
        kill "$ending"
        serve $volume $plain --ublk=4 && is_up && wait "$ending" && [ -e /dev/ublkb4 ] || return
    done
    kill "$server" && wait "$server" && ! [ -e /dev/ublkc4 ]
}

# The second volume of a configuration is on the disk of the first one, which waits.
own_disk() {
    cat >/run/one.toml <<END
[exports.a]
volume = "/run/own"
type = "plain"
cipher = "aes-xts-plain64"
key_size = 256
key_file = "/run/key"
ublk = 4
END
    cp /run/one.toml /run/both.toml
    printf '[exports.b]\nvolume = "/run/link/b"\nkey_file = "pass"\n' >>/run/both.toml
    serve --config /run/one.toml && is_up && mkfs.ext4 -q -F /dev/ublkb4 && mount /dev/ublkb4 /run/fs &&
        cp kernel.noise /run/fs/b && sync && ln -s fs /run/link || return
    left
    echo 3 >/proc/sys/vm/drop_caches
    refuses --config /run/both.toml && says 'exports.b: /run/link/b is reached through a file system of /dev/ublkb4' &&
        serve --config /run/one.toml && is_up && cmp kernel.noise /run/fs/b && umount /run/fs && kill "$server" &&
        wait "$server"
}

read_only() {
    serve $luks --ublk -r && is_up && [ "$(cat /sys/block/ublkb0/ro)" = 1 ] &&
        [ "$(cat /sys/block/ublkb0/queue/discard_max_bytes)" = 0 ] &&
        ! dd if=kernel.noise of=/dev/ublkb0 bs=4096 count=1 oflag=direct conv=notrunc &&
        [ "$(dd if=/dev/ublkb0 iflag=direct bs=64k status=none | sha256sum)" = "$sha" ] &&
        kill "$server" && wait "$server"
}

# Requests of a suspended volume wait until it is resumed, or fail at the end of the server. The writes change nothing.
write_again() { $dd if=/run/first of=/dev/ublkb5 bs=4096 count=1 oflag=direct conv=notrunc & }
waits() {
    writer=$!
    while ! grep -q '[1-9]' /sys/block/ublkb5/inflight; do usleep 50000; done
    kill -0 $writer
}
suspended() {
    serve $luks --ublk=5 --control /run/control && is_up &&
        dd if=/dev/ublkb5 of=/run/first bs=4096 count=1 iflag=direct status=none &&
        ./blockyard suspend /run/control && write_again && waits &&
        ./blockyard resume /run/control && wait $writer &&
        ./blockyard suspend /run/control && write_again && waits && kill "$server" && ! wait $writer && wait "$server" &&
        ! [ -e /dev/ublkb5 ]
}

# A user without privileges: first without the rules of udev, then with a loop in their place.
user() { $setpriv --reuid 1000 --regid 1000 --clear-groups "$@"; }
unprivileged() {
    mkdir -p /run/user && cp blockyard /run/user && truncate -s 16M /run/user/volume && chown -R 1000 /run/user ||
        return
    (cd /run/user && ! user ./blockyard serve volume $plain --ublk >"$log" 2>&1) && says 'rules of udev' || return
    chmod 666 /dev/ublk-control
    while :; do
        chown 1000 /dev/ublkc[0-9]* /dev/ublkb[0-9]*
        usleep 50000
    done 2>/dev/null &
    udev=$!
    for round in 1 2; do
        : >"$log"
        (cd /run/user && exec $setpriv --reuid 1000 --regid 1000 --clear-groups ./blockyard serve volume $plain \
            --ublk=7 --control control >"$log" 2>&1) &
        server=$!
        is_up || return
        while ! user test -w /dev/ublkb7; do usleep 50000; done
        if [ $round = 1 ]; then
            # The kernel would kill a server that holds a request for 30 s.
            [ "$(cat /sys/block/ublkb7/queue/write_zeroes_max_bytes)" = 0 ] &&
                ! user ./blockyard suspend /run/user/control 2>/run/suspend && grep -q '30 s' /run/suspend || return
            user dd if=kernel.noise of=/dev/ublkb7 bs=64k conv=fsync,notrunc status=none || return
            # The kernel keeps no disk of a user's dead server; the next one makes it again.
            kill -9 "$server"
        else
            user dd if=/dev/ublkb7 iflag=direct bs=64k count=16 status=none | cmp - kernel.noise || return
            kill "$server"
        fi
        wait "$server"
    done
    kill $udev
    ! [ -e /dev/ublkb7 ] && ! [ -e /dev/ublkc7 ]
}

head -c 32 kernel.noise >/run/key
part absent absent
insmod /ublk_drv.ko
part facts facts
part ranges ranges
part stable stable
part files files
part kills kills
part others others
part ends ends
part takeovers takeovers
part replaced replaced
part own-disk own_disk
part read-only read_only
part suspended suspended
part unprivileged unprivileged
[ -n "$sha" ] && echo "@ disk read ${sha%% *}" || echo "@ disk failed to be read"
echo "@ done"
