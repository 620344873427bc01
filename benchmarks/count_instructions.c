// A plugin of qemu's that counts the instructions of an emulated program, over all threads, and
// prints their number to standard error when the program ends:
//
//   cc -O2 -shared -fPIC -o libcount.so benchmarks/count_instructions.c
//   qemu-aarch64 -plugin libcount.so PROGRAM
//
// Declares what it needs of qemu-plugin.h, which distributions do not package.

#include <inttypes.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;  // a block of translated instructions
typedef uint64_t qemu_plugin_id_t;

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t,
                                           void (*)(qemu_plugin_id_t, struct qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb*, void (*)(unsigned, void*),
                                          int flags, void* data);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void*), void*);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);

EXPORT int qemu_plugin_version = 1;

static _Atomic uint64_t instructions;

static void execute(unsigned processor, void* count) {
  (void)processor;
  atomic_fetch_add_explicit(&instructions, (uintptr_t)count, memory_order_relaxed);
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb* block) {
  (void)id;
  enum { kNoRegisters };  // accessed by the callback
  qemu_plugin_register_vcpu_tb_exec_cb(block, execute, kNoRegisters,
                                       (void*)qemu_plugin_tb_n_insns(block));
}

static void print(qemu_plugin_id_t id, void* unused) {
  (void)id;
  (void)unused;
  fprintf(stderr, "instructions: %" PRIu64 "\n", atomic_load(&instructions));
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void* info, int count, char** arguments) {
  (void)info;
  (void)count;
  (void)arguments;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
  qemu_plugin_register_atexit_cb(id, print, NULL);
  return 0;
}
