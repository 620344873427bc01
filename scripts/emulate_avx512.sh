#!/usr/bin/env bash
# Runs a program on an emulated processor with AVX-512 VNNI, AVX-VNNI or AMX, to test the kernels for such processors
# on a machine without one (docs/kernels.md). Bochs emulates a machine that boots Linux and runs the program alone.
#
#   bash scripts/emulate_avx512.sh [PROGRAM [ARGUMENT ...]]
#
# PROGRAM (default: build/native/tests/translate_trt_kernel_tests) and its libraries are all files that the
# machine has. What the program prints goes to stdout when it ends, and its exit code is that of the script:
# 2 if PROGRAM is missing, 3 if a requirement is, 124 after LIMIT, 125 if the machine fails. Requirements:
#
#   apt-get install bochsbios busybox-static isolinux syslinux-common vgabios xorriso
#   Bochs 3.0, whose source is that of Debian 13 (bochs_3.0+dfsg.orig.tar.xz). Version 2.7 rounds ties wrongly
#   when it converts to FP16, and Debian's programs have the debugger, which makes them four times as slow.
#   The patch is for AMX:
#       patch -p1 <scripts/bochs-3.0-amx.patch
#       ./configure --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex --enable-amx \
#           --enable-all-optimizations --with-nogui --without-x && make
#
# The Linux kernel is Debian's linux-image-cloud-amd64, fetched into .cache/ without root. Environment:
#   BOCHS     program of Bochs (default: bochs)
#   KERNEL    another Linux kernel, with the serial console and initial file systems built in
#   MODEL     emulated processor (default: corei7_icelake_u; arrow_lake has AVX-VNNI instead of AVX-512,
#             sapphire_rapids has AMX, too)
#   LIMIT     time limit (default: 30m)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { # exit code, message
    printf 'emulate_avx512: %s\n' "$2" >&2
    exit "$1"
}

need() { # package, file
    [ -f "$2" ] || fail 3 "there is no $2. Install it, for example: apt-get install $1"
}

case ${1:-} in -*) sed -n '2,24s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
[ $# -gt 0 ] || set -- build/native/tests/translate_trt_kernel_tests
[ -f "$1" ] && [ -x "$1" ] ||
    fail 2 "there is no program $1. The kernels' tests: bash scripts/build_library.sh -D TRANSLATE_TRT_TESTS=ON"
program=$(readlink -f "$1")
shift

bochs=${BOCHS:-bochs}
busybox=$(command -v busybox || echo busybox)
bios=/usr/share/bochs/BIOS-bochs-latest
vga_bios=/usr/share/vgabios/vgabios.bin
loader=/usr/lib/ISOLINUX/isolinux.bin
loader_library=/usr/lib/syslinux/modules/bios/ldlinux.c32
command -v "$bochs" >/dev/null ||
    fail 3 "there is no $bochs. Build Bochs (the head of $0 says how) and set BOCHS"
[[ $("$bochs" --help 2>&1) != *" -rc "* ]] ||
    fail 3 "$bochs has the debugger. Build Bochs without it (the head of $0 says how) and set BOCHS"
command -v xorriso >/dev/null ||
    fail 3 "there is no xorriso. Install it, for example: apt-get install xorriso"
need busybox-static "$busybox"
! ldd "$busybox" >/dev/null 2>&1 ||
    fail 3 "$busybox is linked dynamically. Install a static one: apt-get install busybox-static"
need bochsbios "$bios"
need vgabios "$vga_bios"
need isolinux "$loader"
need syslinux-common "$loader_library"

# Of all Debian's kernels, that for virtual machines is the smallest and unpacks fastest.
fetch_kernel() {
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 |
        sed -n 's/^ *Depends: *\(linux-image-[0-9].*\)/\1/p') && [ -n "$package" ] || return 1
    mkdir -p .cache/linux
    (
        cd .cache/linux
        rm -f ./*.deb
        apt-get -qq -o APT::Sandbox::User= download "$package" &&
            dpkg-deb --fsys-tarfile ./*.deb | tar -xO --wildcards './boot/vmlinuz-*' >unpacked &&
            rm ./*.deb && mv unpacked kernel
    ) >&2
}
kernel=${KERNEL:-.cache/linux/kernel}
[ -n "${KERNEL:-}" ] || [ -f "$kernel" ] || fetch_kernel ||
    fail 3 "Debian's linux-image-cloud-amd64 cannot be fetched. Run apt-get update, or set KERNEL"
[ -r "$kernel" ] || fail 3 "the kernel $kernel cannot be read"

folder=$(mktemp -d)
machine=''
trap '[ -z "$machine" ] || kill "$machine"; rm -rf "$folder"' EXIT

# ---- the boot image: the kernel, and a file system with the program ----

image=$folder/image files=$folder/files
mkdir -p "$image" "$files"/{bin,dev,proc,sys,tmp}
cp "$busybox" "$files/bin/busybox"
libraries=$(ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true)  # none if it is static
for file in "$program" $libraries; do
    mkdir -p "$files$(dirname "$file")"
    cp -L "$file" "$files$file"
done

cat >"$files/init" <<END
#!/bin/busybox sh
export PATH=/bin HOME=/tmp
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
cd /tmp
stty -onlcr
echo
echo "emulated processor: \$(sed -n 's/^model name.*: //p' /proc/cpuinfo)"
$(printf '%q ' "$program" "$@") </dev/null 2>&1
echo "exit code of the program: \$?"
stty sane  # waits until all output is sent
sleep 1
poweroff -f
END
chmod +x "$files/init"
(cd "$files" && find . | "$busybox" cpio -o -H newc) >"$image/initrd" 2>"$folder/log" ||
    fail 125 "the file system cannot be made: $(cat "$folder/log")"

# Linux turns AVX off if the processor has pku (515), because CPUID of Bochs describes its saved registers
# inconsistently. Its memmove hangs with fsrm (580) but without erms, which Bochs lacks. With five levels of page
# tables, Bochs stops when Linux turns the machine off.
cp "$kernel" "$image/kernel"
cp "$loader" "$loader_library" "$image"
cat >"$image/isolinux.cfg" <<'END'
default linux
label linux
  kernel kernel
  append initrd=initrd console=ttyS0 quiet clearcpuid=515,580 nopku no5lvl mitigations=off nokaslr panic=-1
END
xorriso -as mkisofs -quiet -o "$folder/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot \
    -boot-load-size 4 -boot-info-table "$image" >"$folder/log" 2>&1 ||
    fail 125 "the boot image cannot be made: $(cat "$folder/log")"

# ---- the machine ----

# With more instructions per second (ips), Linux waits longer for devices.
cat >"$folder/bochsrc" <<END
config_interface: textconfig
display_library: nogui
cpu: model=${MODEL:-corei7_icelake_u}, ips=50000000, reset_on_triple_fault=0
memory: guest=512, host=512
romimage: file="$bios"
vgaromimage: file="$vga_bios"
ata0-master: type=cdrom, path="$folder/boot.iso", status=inserted
boot: cdrom
clock: sync=none, time0=utc
com1: enabled=1, mode=file, dev="$folder/serial"
log: "$folder/log"
panic: action=fatal
error: action=report
info: action=ignore
debug: action=ignore
END
: >"$folder/serial"
timeout -k 3 "${LIMIT:-30m}" "$bochs" -q -f "$folder/bochsrc" </dev/null >"$folder/screen" 2>&1 &
machine=$!
status=0
wait "$machine" || status=$?  # never 0: turning the machine off counts as an error
machine=''

# ---- what the program printed ----

tr -d '\r' <"$folder/serial" >"$folder/output"
grep '^emulated processor: ' "$folder/output" >&2 || true
sed -e '1,/^emulated processor: /d' -e '/^exit code of the program: /,$d' "$folder/output"
code=$(sed -n 's/^exit code of the program: \([0-9]*\)$/\1/p' "$folder/output")
[ -z "$code" ] || exit "$code"
case $status in 124 | 137) fail 124 "the program did not end within ${LIMIT:-30m}" ;; esac
tail -n 20 "$folder/output" "$folder/log" "$folder/screen" >&2
fail 125 "the emulated machine stopped before the program ended"
