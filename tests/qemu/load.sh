# Runs in the guest: four writers load /dev/vda until the console says "stop". Each rewrites its own MiB, with many
# requests in flight, and reads it back past the page cache. It prints "@ round PART ROUND" after each pass, and in the
# end "@ disk read SHA256" of the whole disk, or "@ disk failed WHY".
disk=/dev/vda
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

cat kernel.noise kernel.noise >/run/source
for part in 0 1 2 3; do write_until_stopped "$part" & done
while read -r line && [ "$line" != stop ]; do :; done
touch /run/stop
wait
sha=$(dd if="$disk" iflag=direct bs=65536 status=none | sha256sum)
echo "@ disk read ${sha%% *}"
echo "@ done"
