// rccl-functions: which functions does this machine's librccl.so.1 have? No GPU is needed.
//
// Calls RCCL's own entry points with a communicator of two ranks that exists in this process alone, inside a group that
// is never ended: what the library has is put into the group's queue (ncclSuccess), what it was built without is refused
// (ncclInvalidArgument). Prints a line for each: collective, operation, type, yes or no. Any other answer is a fault.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "comm.h"
#include "nccl.h"

static const char* const types[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                    "uint64", "float16", "float32", "float64", "bfloat16"};
static const char* const ops[] = {"sum", "prod", "max", "min", "avg", "premulsum"};
static const char* const collectives[] = {"reduce", "reducescatter", "allreduce"};
static const int kPreMulSum = 5;

static ncclComm* pretend() {
  auto* comm = static_cast<ncclComm*>(calloc(1, sizeof(ncclComm)));
  if (comm == nullptr) return nullptr;
  ncclMemoryStackConstruct(&comm->memPermanent);
  ncclMemoryStackConstruct(&comm->memScoped);
  ncclIntruQueueConstruct(&comm->tasks.collQueue);
  comm->groupNext = comm->preconnectNext = reinterpret_cast<ncclComm*>(0x1);
  comm->nRanks = 2;
  return comm;
}

static ncclResult_t call(int collective, ncclDataType_t type, ncclRedOp_t op, ncclComm* comm) {
  static char data[64];
  switch (collective) {
  case 0: return ncclReduce(data, data, 1, type, op, 0, comm, nullptr);
  case 1: return ncclReduceScatter(data, data, 1, type, op, comm, nullptr);
  default: return ncclAllReduce(data, data, 1, type, op, comm, nullptr);
  }
}

int main() {
  ncclComm* comm = pretend();
  if (comm == nullptr || ncclGroupStart() != ncclSuccess) return 1;
  for (int collective = 0; collective < 3; collective++) {
    for (int op = 0; op <= kPreMulSum; op++) {
      for (int type = 0; type < 10; type++) {
        auto asked = static_cast<ncclRedOp_t>(op);
        uint64_t scalar = 1;
        auto residence = ncclScalarHostImmediate;
        if (op == kPreMulSum &&
            ncclRedOpCreatePreMulSum(&asked, &scalar, static_cast<ncclDataType_t>(type), residence, comm) != ncclSuccess)
          return 1;
        int queued = comm->tasks.nTasksColl;
        ncclResult_t result = call(collective, static_cast<ncclDataType_t>(type), asked, comm);
        bool has = result == ncclSuccess;
        // refused means: before anything was put into the queue
        if (comm->tasks.nTasksColl != queued + has || (!has && result != ncclInvalidArgument)) {
          fprintf(stderr, "%s %s %s: %s, %d queued\n", collectives[collective], ops[op], types[type],
                  ncclGetErrorString(result), comm->tasks.nTasksColl - queued);
          return 1;
        }
        printf("%s %s %s %s\n", collectives[collective], ops[op], types[type], has ? "yes" : "no");
      }
    }
  }
  fflush(stdout);
  _exit(0);  // the group has no GPU to be ended on
}
