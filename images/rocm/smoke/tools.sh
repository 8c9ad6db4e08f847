#!/bin/sh
# The tools that ask a GPU start, and say that there is none where there is none.
set -u
fail() {
  echo "tools: $*" >&2
  exit 1
}

if command -v rocm-sdk > /dev/null; then
  # AMD's wheels: the tools are there when ROCm is, and which of them changes from release to release
  version=$(rocm-sdk version) || fail "rocm-sdk version ends with $?"
  command -v rocminfo > /dev/null || fail "rocminfo is missing, which bitsandbytes and Unsloth ask for the GPU"
  command -v lspci > /dev/null || fail "lspci is missing, which Unsloth asks for the GPU"
  told=$(rocminfo 2>&1)
  code=$?
  [ -e /dev/kfd ] || [ "$code" != 0 ] || fail "rocminfo ends well without a GPU: $told"
  [ ! -e /dev/kfd ] || [ "$code" = 0 ] || fail "rocminfo fails although there is /dev/kfd: $told"
  [ "$code" -lt 126 ] || fail "rocminfo does not run: $told"
  echo "rocm-sdk $version; rocminfo runs"
  exit 0
fi

for tool in rocminfo rocm_agent_enumerator amd-smi rocm-smi; do
  command -v "$tool" > /dev/null || fail "$tool is missing"
done
agents=$(rocm_agent_enumerator 2>&1) || fail "rocm_agent_enumerator ends with $?: $agents"
help=$(amd-smi --help 2>&1)
case "$help" in
  *usage:*) ;;
  *"Drivers not loaded"*) [ ! -e /dev/kfd ] || fail "amd-smi does not see the driver: $help" ;;
  *) fail "amd-smi --help does not show how it is used but: $(echo "$help" | tail -n 3)" ;;
esac
help=$(rocm-smi --help 2>&1) || fail "rocm-smi --help ends with $?: $(echo "$help" | tail -n 3)"
if [ ! -e /dev/kfd ]; then
  told=$(rocminfo 2>&1) && fail "rocminfo ends well without a GPU: $told"
  case "$told" in
    *"NOT loaded"*) ;;
    *) fail "rocminfo does not say that there is no driver but: $told" ;;
  esac
  echo "rocminfo, rocm_agent_enumerator, amd-smi and rocm-smi start; there is no GPU here"
else
  rocminfo > /dev/null 2>&1 || fail "rocminfo fails although there is /dev/kfd"
  echo "rocminfo sees: $(echo "$agents" | tr '\n' ' ')"
fi
