#!/bin/sh
# The text of the real run: C sources and documentation of the Linux kernel, from Debian, as one archive.
#
#     bench/real_run_data.sh FOLDER ARCHIVE.tar.xz [MEBIBYTES] [PACKAGE]
#
# Needs Debian's apt, dpkg, xz and network; works in FOLDER, which holds about 3 GB afterwards. Which files are taken is
# decided by a hash of their paths, so that they are a fair sample of the tree, and the same one everywhere: as many as
# fit MEBIBYTES (45) when packed. Of these every hundredth is for validation. Their text is as it is in the kernel; left
# out are generated tables of register addresses (include/asic_reg), a third of the tree, and pictures. The archive and
# FOLDER/text hold `train/` and `validation/`.
set -eu
export LC_ALL=C
[ $# -ge 2 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
folder=$1 archive=$2 limit=$((${3:-45} * 1048576)) package=${4:-linux-source-6.1}
mkdir -p "$folder" "$(dirname "$archive")"
archive=$(cd "$(dirname "$archive")" && pwd)/$(basename "$archive")
cd "$folder"

if [ ! -d tree ]; then
    rm -rf unpacked partial
    apt-get download "$package"
    dpkg-deb -x "$package"_*.deb unpacked
    mkdir partial
    tar -xf unpacked/usr/src/linux-source-*.tar.xz -C partial --strip-components=1
    mv partial tree
fi

# Path, tab, bytes; in the order of a hash of the path (sort -R hashes keys, the source of "randomness" salts the hash).
(cd tree && find . -type f \( -name '*.[ch]' -o -path './Documentation/*' \) ! -path '*/asic_reg/*' \
    ! -name '*.svg' ! -name '*.gif' ! -name '*.png' ! -name '*.pdf' -size +0 -printf '%P\t%s\n') |
    sort -t "$(printf '\t')" -R -k 1,1 --random-source=/dev/zero > files.txt

# Packs the files that come first in that order and have $1 bytes together.
pack() {
    awk -F '\t' -v most="$1" '{ total += $2; if (total > most) exit; print $1 > (NR % 100 ? "train.txt" : "validation.txt") }' files.txt
    rm -f text.tar
    for split in train validation; do
        sort -o $split.txt $split.txt
        tar -rf text.tar -C tree --format=ustar --owner=0 --group=0 --numeric-owner --mode=644 --mtime=@0 \
            --transform="s,^,$split/," -T $split.txt
    done
    xz -T2 -6 -c text.tar > "$archive.partial"
    packed=$(stat -c %s "$archive.partial")
    echo "$1 bytes of text: $packed bytes packed" >&2
}

# A tenth of the text says how well it packs; then as much as should fit, until it does and little room is left.
all=$(awk -F '\t' '{ total += $2 } END { printf "%d", total }' files.txt)
wanted=$((all / 10))
pack $wanted
while [ "$packed" -gt "$limit" ] || { [ "$packed" -lt $((limit / 100 * 97)) ] && [ $wanted -lt "$all" ]; }; do
    wanted=$((wanted * (limit / 1024) / (packed / 1024) * 99 / 100))
    [ $wanted -lt "$all" ] || wanted=$all
    pack $wanted
done
mv "$archive.partial" "$archive"
rm -rf text
mkdir text
tar -xf text.tar -C text
rm text.tar
echo "$(wc -l < train.txt) files to train on, $(wc -l < validation.txt) to validate on, in $archive"
