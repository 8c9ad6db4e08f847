#!/bin/sh
# build.sh VERSION TARGET FUNCTIONS OPTIONS: compile /build/source for one target and lay the result under /result.
# OPTIONS go to the compiler of the library, separated by semicolons, where our patches make it take them. Compiled
# objects and the linked library are kept in the engine's cache, which /var/cache/strix-finetune is for this step.
set -eu
version=$1 target=$2 functions=$3 options=$4
here=$(dirname "$0")
cache=/var/cache/strix-finetune

# the driver shows this sentence; a cure stands after a semicolon
fail() {
  echo "strix-finetune: $*" >&2
  exit 1
}

# hipcc only calls clang, and the code also depends on the device libraries: ccache sees neither by itself
compiler=$(dpkg-query --show | grep -E '^(clang|hipcc|libclang-cpp|libllvm|lld|llvm|rocm-device-libs)' | tr '\t\n' '= ')
export CCACHE_DIR="$cache/ccache" CCACHE_MAXSIZE=2G CCACHE_COMPILERCHECK="string:$compiler"
export LINK_CACHE="$cache/links" LINK_COMPILER="$compiler"

# Bounded by cores and by memory: a unit of device code takes up to 1.6 GB, the link of all functions 4 GB.
free=$(awk '/^MemAvailable:/ { print int($2 / 1000) }' /proc/meminfo)
for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
  limit=$(cat "$file" 2> /dev/null || echo max)
  case "$limit" in
    *[!0-9]*) ;;
    *) [ $((limit / 1000000)) -ge "$free" ] || free=$((limit / 1000000)) ;;
  esac
done
needed=1600
[ "$functions" = training ] || needed=4000
[ "$free" -ge "$needed" ] || fail "linking RCCL's function set '$functions' takes $needed MB of memory, and $free MB are free; make room"
jobs=$((free / 1600))
[ "$jobs" -le "$(nproc)" ] || jobs=$(nproc)

[ -f "$here/functions/$functions.txt" ] \
  || fail "RCCL has no function set '$functions'; known: $(ls "$here/functions" | sed 's/\.txt$//' | paste -s -d ' ')"
case "$version" in
  5.4.3)
    python3 "$here/function_set.py" "$here/functions/$functions.txt" > /build/source/src/include/function_set.h
    set -- "-DRCCL_EXTRA_OPTIONS=$options" -DBUILD_FILE_REORG_BACKWARD_COMPATIBILITY=OFF
    ;;
  *)
    # its own ONLY_FUNCS leaves functions out without refusing them: a call of one would crash the GPU
    [ "$functions" = full ] || fail "RCCL $version has no function set '$functions'; set functions = \"full\""
    set -- -DENABLE_MSCCLPP=OFF -DENABLE_MSCCL_KERNEL=OFF -DGENERATE_SYM_KERNELS=OFF
    ;;
esac

cd /build
echo "compiling for $target, functions '$functions', $jobs at a time"
# the C compiler is only asked for its headers
cmake -G Ninja -S source -B out -Wno-dev -DCMAKE_BUILD_TYPE=Release -DCMAKE_SKIP_RPATH=ON -DCMAKE_INSTALL_LIBDIR=lib \
  -DCMAKE_CXX_COMPILER=hipcc -DCMAKE_C_COMPILER="$(ls /usr/bin/clang-[0-9]* | tail -n 1)" \
  -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_LINKER_LAUNCHER="python3;$here/cached_link.py" \
  -DROCM_PATH=/usr -DAMDGPU_TARGETS="$target" -DGPU_TARGETS="$target" -DBUILD_TESTS=OFF "$@" > configure.log \
  || { tail -n 30 configure.log; fail "RCCL's sources cannot be configured for $target; the log of the layer says why"; }
ninja -C out -j "$jobs"
ccache --show-stats | grep -E 'Hits|Misses' | head -n 2

prefix=/result/opt/rccl
DESTDIR= cmake --install out --prefix "$prefix" --strip > /dev/null
rm -rf "$prefix/include" "$prefix/lib/cmake" "$prefix/share"
cp source/LICENSE.txt source/NOTICES.txt "$prefix/"
mkdir -p "$prefix/bin" /result/etc/ld.so.conf.d
echo /opt/rccl/lib > /result/etc/ld.so.conf.d/rccl.conf
# the program that asks for each function knows the inside of one version
[ "$version" = 5.4.3 ] || exit 0
hipcc --offload-host-only -x hip -O1 -w -std=c++14 $(echo "$options" | tr ';' ' ') \
  -I out/include -I out/include/rccl -I source/src -I source/src/include -I source/src/collectives \
  "$here/functions.cc" -o "$prefix/bin/rccl-functions" -s -L "$prefix/lib" -lrccl
