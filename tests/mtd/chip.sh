# For scripts that tests/mtd/guest runs: chips, one at a time, and what the kernel counts of them.
# Loaded into busybox's shell.

# Makes a chip of this shape /dev/mtd0, with more parameters of nandsim behind it:
#   chip 2k-48M bch=4 badblocks=7,9
# Shapes are page size and size; the identification bytes are those of real chips.
chip() {
    chip_remove
    case "$1" in
        512-*) id="first_id_byte=0x20 second_id_byte=0x73" ;;       # 16 MiB, 512 B + 16 B, 32 pages
        mlc-*) id="first_id_byte=0x2c second_id_byte=0xda third_id_byte=0x94 fourth_id_byte=0x95" ;;
        2k-*) id="first_id_byte=0x2c second_id_byte=0xda third_id_byte=0x90 fourth_id_byte=0x95" ;;
        4k-8G) id="id_bytes=0x2c,0xd3,0x90,0xb6,0x64" ;;             # 4 KiB + 224 B, 128 pages
        4k-*) id="id_bytes=0x2c,0xd3,0x90,0xa6,0x64" ;;             # 1 GiB, 4 KiB + 224 B, 64 pages
        *) echo "no such chip: $1"; return 1 ;;
    esac
    case "$1" in
        512-16M) blocks= ;;
        512-4M) blocks=parts=256 ;;                                  # blocks of 16 KiB
        2k-256M) blocks= ;;
        2k-48M) blocks=parts=384 ;;                                  # blocks of 128 KiB
        2k-8M | mlc-8M) blocks=parts=64 ;;
        2k-6M) blocks=parts=48 ;;
        4k-16M) blocks=parts=64 ;;                                   # blocks of 256 KiB
        4k-8G) blocks=overridesize=14 ;;                             # 16,384 of 512 KiB
        *) echo "no such chip: $1"; return 1 ;;
    esac
    shift
    load nandsim $id $blocks "$@" || return 1
    [ -c /dev/mtd0 ]
}

# Whether a module is loaded.
loaded() { grep -q "^$(echo "$1" | tr - _) " /proc/modules; }

# Loads a module, after those that it needs, with these parameters.
load() {
    local name="$1" module
    shift
    for module in $(cat /modules/$name); do
        case "$module" in
            $name.ko) insmod /modules/$module "$@" || return 1 ;;
            *) loaded ${module%.ko} || insmod /modules/$module || return 1 ;;
        esac
    done
}

# Removes the chip, with all that it holds.
chip_remove() {
    count_end
    [ ! -d /sys/module/nandsim ] || rmmod nandsim
}

# Has the kernel count the chip's operations from now on: `ns_do_state_action` of nandsim gets a word
# that says what the array does.
count_begin() {
    count_end
    trace=/sys/kernel/tracing
    echo 'p:chip nandsim:ns_do_state_action action=%si:u32' >$trace/kprobe_events &&
        echo 'hist:keys=action.hex:size=128' >$trace/events/kprobes/chip/trigger &&
        echo 1 >$trace/events/kprobes/chip/enable
}

# Prints what the kernel has counted, as `reads N programs N erases N`.
count() {
    awk '
        $2 == "action:" { count[$3] = $NF }
        END {
            printf "reads %d programs %d erases %d\n", count["100003"], count["200004"], count["30000b"]
        }
    ' /sys/kernel/tracing/events/kprobes/chip/hist
}

count_end() {
    trace=/sys/kernel/tracing
    [ -d $trace/events/kprobes/chip ] || return 0
    echo 0 >$trace/events/kprobes/chip/enable
    echo '!hist:keys=action.hex:size=128' >$trace/events/kprobes/chip/trigger
    echo >$trace/kprobe_events
}
