#!/usr/bin/env bash
# Runs what new users type on their first day (commands.txt) in a fresh Debian with the trainer and Open MPI:
#
#   bench/first_day/run.sh TRAINER > result.md
#
# Prints a table: what each command should do, what it did, and the line that it printed. The exit code is 0 if all did what they
# should. Needs root, debootstrap, and a Python with pyarrow and tokenizers, which makes the user's files: python3, or PYTHON.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() {
    echo "first day: $*" >&2
    exit 2
}

[ $# = 1 ] && [ -x "$1" ] || die "usage: bench/first_day/run.sh TRAINER"
[ "$(id -u)" = 0 ] || die "it makes a root file system. Fix: run it as root"
command -v debootstrap >/dev/null || die "debootstrap is missing. Fix: apt-get install debootstrap"

root=$(mktemp -d)
mounted() { chroot "$root" mount -t proc proc /proc && mount --rbind /dev "$root/dev"; }
clean() {
    umount -R "$root/dev" "$root/proc" 2>/dev/null || true
    rm -rf --one-file-system "$root"
}
trap clean EXIT
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | sed '/debian$/!d;q')
debootstrap --variant=minbase bookworm "$root" ${mirror:+"$mirror"} >&2
cp /etc/resolv.conf "$root/etc/"
mounted
chroot "$root" sh -c 'apt-get install -y -qq --no-install-recommends openmpi-bin libopenmpi3 >/dev/null' >&2
cp "$1" "$root/usr/local/bin/trainer"
strip "$root/usr/local/bin/trainer"
cp "$(dirname "$1")/libtrainer_mpi.so" "$root/usr/local/lib/"

# The user's files.
home=$root/root/first
mkdir -p "$home/hub"
cat /usr/share/common-licenses/GPL-3 >"$home/corpus.txt"
awk 'NF { gsub(/["\\\t]/, " "); printf "{\"text\": \"%s\"}\n", $0 }' "$home/corpus.txt" >"$home/corpus.json"
gzip -c "$home/corpus.json" >"$home/corpus.jsonl.gz"
for part in 1 2 3; do cp "$home/corpus.jsonl.gz" "$home/hub/part-$part.jsonl.gz"; done
echo "# A dataset" >"$home/hub/README.md"
printf 'PK\3\4 and so on' >"$home/archive.zip"
printf '[train]\nlr = 1e-3\n' >"$home/typo.toml"
"${PYTHON:-python3}" - "$home" <<'PYTHON'
import sys

import pyarrow
import pyarrow.parquet
from tokenizers import ByteLevelBPETokenizer

home = sys.argv[1]
lines = [line for line in open(f"{home}/corpus.txt") if line.strip()]
pyarrow.parquet.write_table(pyarrow.table({"id": range(len(lines)), "content": lines}), f"{home}/table.parquet")
tokenizer = ByteLevelBPETokenizer()
tokenizer.train_from_iterator(lines, vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
tokenizer.save(f"{home}/tokenizer.json")
PYTHON

echo "| | command | | what it printed last |"
echo "|---|---|---|---|"
number=0 failures=0
while read -r expected command; do
    case $expected in '#'* | '') continue ;; esac
    number=$((number + 1)) code=0
    chroot "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/root bash -c "cd /root/first && $command" \
        >"$root/out" 2>"$root/err" </dev/null || code=$?
    case $expected in
        works) line=$(tail -1 "$root/out"); [ $code = 0 ] && said=works || said="FAILED: exit code $code" ;;
        helps)
            # One error, with a rule and a fix.
            line=$(grep -E '^error( on rank [0-9]+)?: ' "$root/err" || true)
            said=helps
            [ $code = 2 ] && [ "$(wc -l <<<"$line")" = 1 ] && [[ $line == *Rule:*Fix:* ]] ||
                said="FAILED: exit code $code, $(tail -1 "$root/err")"
            ;;
        *) die "$expected is neither works nor helps" ;;
    esac
    [[ $said != FAILED* ]] || failures=$((failures + 1))
    line=${line:0:240}
    echo "| $number | \`${command//|/\\|}\` | $said | ${line//|/\\|} |"
done <"$here/commands.txt"
echo
echo "$number commands, $failures not as they should be."
[ $failures = 0 ]
