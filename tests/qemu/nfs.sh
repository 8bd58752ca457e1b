# programs: mount.nfs
# modules: virtio_net nfsv4
# Runs in the guest: volumes in files of an NFS mount. It prints "@ NAME ok" for each part, or "@ NAME failed WHY". Then a
# volume of the mount is served as a disk of this kernel, and load.sh loads that until the console says "stop".
# Then the machine writes until an error, which it prints as "@ lost WHY".
log=/run/log
plain="--type plain --cipher aes-xts-plain64 --key-size 256 --key-file /run/key"
cheap="--pbkdf-memory 32 --pbkdf-force-iterations 4"
chmod 755 /

why() { tr '\n' ' ' <"$log"; }
part() {
    name=$1
    shift
    : >"$log"
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
ends() { kill "$server" && wait "$server"; }
refuses() {
    serve "$@"
    if is_up; then
        ends
        return 1
    fi
    ! wait "$server" && grep -q 'another program' "$log"
}
blocks() { stat -c %b "$1"; }

# Versions 4.2 and 4.1 are clients of their own.
mounts() {
    mkdir -p /run/one /run/two && mount.nfs -o vers=4.2,hard 10.0.0.1:/ /run/one &&
        mount.nfs -o vers=4.1,hard 10.0.0.1:/ /run/two && truncate -s 24M /run/one/luks && [ -e /run/two/luks ]
}

bytes() {
    for round in 1 2 3 4 5 6 7 8; do cat kernel.noise; done >/run/plain
    ./blockyard format /run/one/luks --key-file pass $cheap && ./blockyard load /run/one/luks --key-file pass -i /run/plain &&
        ./blockyard dump /run/two/luks --key-file pass -o /run/dump && cmp /run/plain /run/dump
}

# The second server is another client of the store.
locks() {
    truncate -s 4M /run/one/locked && serve /run/one/locked $plain --socket /run/first && is_up && first=$server &&
        refuses /run/two/locked $plain --socket /run/second && kill $first && wait $first &&
        serve /run/two/locked $plain --socket /run/second && is_up && ends
}

# After the load, of which the store was lost and came back.
refuses_second() {
    serving=$server
    refuses /run/two/disk $plain --socket /run/second
    refused=$?
    server=$serving
    return $refused
}

# The lock of a header is not taken apart from that of the volume.
luks_lock() {
    serve /run/one/luks --key-file pass --socket /run/first && is_up && first=$server &&
        refuses /run/two/luks --key-file pass --socket /run/second && ./blockyard info /run/two/luks >/dev/null &&
        ! ./blockyard key add /run/two/luks --key-file pass --new-keyfile /run/key 2>/run/refused &&
        grep -q 'another program' /run/refused
    seen=$?
    kill $first
    wait $first
    return $seen
}

# Past the page cache.
direct() {
    truncate -s 8M /run/one/direct && serve /run/one/direct $plain --sector-size 4096 --ublk=4 --elevator mq-deadline &&
        is_up &&
        dd if=kernel.noise of=/dev/ublkb4 bs=64k seek=16 oflag=direct conv=notrunc,fsync status=none &&
        dd if=/dev/ublkb4 bs=64k skip=16 count=16 iflag=direct status=none | cmp - kernel.noise && ends &&
        ./blockyard dump /run/two/direct $plain --sector-size 4096 --force -o /run/dump && cmp -n 1048576 /run/dump kernel.noise 1048576 0
}

# The store gets its blocks back.
discards() {
    head -c 4194304 /run/plain >/run/one/holes && sync && before=$(blocks /run/one/holes) &&
        serve /run/one/holes $plain --ublk=4 --allow-discards && is_up && /usr/sbin/blkdiscard -l 2097152 /dev/ublkb4 &&
        ends && after=$(blocks /run/one/holes) && [ $((before - after)) = 4096 ]
}

# The store has no room for a block that was never written.
fill_store() {
    fallocate -l $(($(df -k /run/one | awk 'END { print $4 }') - 6144))k /run/one/filler &&
        ! dd if=/dev/zero of=/run/one/rest bs=64k conv=fsync
}
full() {
    truncate -s 4M /run/one/sparse && fill_store && serve /run/one/sparse $plain --ublk=4 && is_up &&
        ! dd if=kernel.noise of=/dev/ublkb4 bs=64k conv=fsync,notrunc && kill "$server" && ! wait "$server" &&
        grep -q 'No space' "$log"
    seen=$?
    rm /run/one/filler /run/one/rest
    return $seen
}

for module in /modules/*; do insmod "$module"; done
insmod /ublk_drv.ko
hostname client
ip link set lo up
ip addr add 10.0.0.2/24 dev eth0
ip link set eth0 up
head -c 32 kernel.noise >/run/key
part mounts mounts
for name in bytes locks luks_lock direct discards full; do part $name $name; done
truncate -s 32M /run/one/disk
serve /run/one/disk $plain --ublk=3
is_up || echo "@ disk failed $(why)"
disk=/dev/ublkb3
. ./load.sh
part kept-lock refuses_second
while dd if=/run/key of=$disk bs=512 count=1 conv=fsync,notrunc 2>/run/errors; do :; done
echo "@ lost $(tr '\n' ' ' </run/errors) $(why)"
kill "$server"
wait "$server" && echo "@ failed the server says nothing of it"
