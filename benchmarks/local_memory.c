/* Read memory of one NUMA node: `local_memory NODE MIB RUNS` prints a line for each run, the latency
   in ns and the bandwidth in GB/s. The CPUs are those that the caller may run on. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MPOL_BIND = 2, LINE = 64 / sizeof(uint64_t), STEPS = 2000000 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Link all cache lines to one cycle in random order (Sattolo), which no prefetcher foresees. */
static void shuffle(uint64_t *memory, size_t lines) {
  uint64_t seed = 1;
  for (size_t at = 0; at < lines; at++) memory[at * LINE] = at;
  for (size_t at = lines - 1; at > 0; at--) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    size_t other = (seed >> 33) % at;
    uint64_t kept = memory[at * LINE];
    memory[at * LINE] = memory[other * LINE];
    memory[other * LINE] = kept;
  }
}

int main(int count, char **arguments) {
  if (count != 4) return 2;
  unsigned long nodes[16] = {0}, node = strtoul(arguments[1], NULL, 10);
  if (node >= 8 * sizeof nodes) return 2;
  nodes[node / 64] = 1ul << node % 64;
  if (syscall(SYS_set_mempolicy, MPOL_BIND, nodes, 8 * sizeof nodes)) return perror("set_mempolicy"), 1;

  size_t bytes = strtoul(arguments[2], NULL, 10) << 20;
  uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return perror("mmap"), 1;
  madvise(memory, bytes, MADV_HUGEPAGE); /* fewer misses of the TLB, which are not asked for here */
  shuffle(memory, bytes / 64);

  uint64_t at = 0;
  volatile uint64_t sum = 0; /* so that the compiler leaves nothing out */
  for (int run = 0; run < atoi(arguments[3]); run++) {
    double began = now();
    for (int step = 0; step < STEPS; step++) at = memory[at * LINE];
    double latency = 1e9 * (now() - began) / STEPS;
    uint64_t read = at;
    began = now();
    for (size_t word = 0; word < bytes / 8; word++) read += memory[word];
    printf("%.2f %.3f\n", latency, 1e-9 * (double)bytes / (now() - began));
    sum += read;
  }
}
