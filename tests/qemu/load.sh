# Runs in the guest: four writers load $disk (else /dev/vda) until the console says "stop". Each rewrites its own MiB,
# with many requests in flight, and reads it back past the page cache. It prints "@ round PART ROUND" after each pass, and
# in the end "@ disk read SHA256" of the whole disk, or "@ disk failed WHY".
# At "busy" it rewrites 2 MiB of memory all the time, until "keep": a migration does not end meanwhile, also if the disk
# stalls. At "keep" it reads 16 MiB more into the page cache and says "@ kept": memory that only the disk has written. In
# the end these pages must still be right.
disk=${disk:-/dev/vda}
blocks=256

one_pass() {
    dd if=/run/source of="$disk" bs=4096 skip="$from" seek=$((part * blocks)) count="$blocks" \
        conv=notrunc,fsync status=none &&
        dd if="$disk" iflag=direct bs=65536 skip=$((part * 16)) count=16 status=none >"/run/read.$part" &&
        cmp -n $((blocks * 4096)) "/run/read.$part" /run/source 0 $((from * 4096))
}

write_until_stopped() {
    part=$1 round=0
    while [ ! -e /run/stop ]; do
        round=$((round + 1))
        from=$(((round * 37 + part * 50) % blocks))
        if ! one_pass 2>"/run/errors.$part"; then
            echo "@ disk failed part $part, round $round: $(tr '\n' ' ' <"/run/errors.$part")"
            return
        fi
        echo "@ round $part $round"
    done
}

kept_mib() { dd if="$disk" bs=1M skip=$((8 + $1)) count=1 status=none; }
each_mib() { for mib in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do "$1" "$mib" || return; done; }
write_kept() { dd if=kernel.noise of="$disk" bs=1M seek=$((8 + $1)) oflag=direct conv=notrunc status=none; }
read_kept() { kept_mib "$1" >/dev/null; }
rewrite_memory() { while [ ! -e /run/is_kept ]; do dd if=/run/source of=/run/busy bs=1M conv=notrunc status=none; done; }
check_kept() { kept_mib "$1" | cmp - kernel.noise 2>&1; }

cat kernel.noise kernel.noise >/run/source
each_mib write_kept
# The page cache of a device lives as long as the device is open.
exec 9<"$disk"
writers=
for part in 0 1 2 3; do
    write_until_stopped "$part" &
    writers="$writers $!"
done
while read -r line && [ "$line" != stop ]; do
    case $line in
    busy) rewrite_memory & ;;
    keep) each_mib read_kept && echo "@ kept" && touch /run/is_kept ;;
    esac
done
touch /run/stop
# A script that reads this one has other children.
wait $writers
each_mib check_kept || echo "@ disk failed pages that were read before have changed"
sha=$(dd if="$disk" iflag=direct bs=65536 status=none | sha256sum)
echo "@ disk read ${sha%% *}"
echo "@ done"
