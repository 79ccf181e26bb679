// Exchanges of host_exchange_bench by MPI, to compare with: the same sizes, calls and lines. Not part of the build.
//
//   mpicc -O2 bench/comm/mpi_exchange_bench.c -o /tmp/mpi_exchange_bench     Debian: libopenmpi-dev
//   mpirun -n 2 --mca pml ob1 --mca btl tcp,self /tmp/mpi_exchange_bench     over TCP by MPI itself
//   mpirun -n 2 --mca pml ucx -x UCX_TLS=tcp,self /tmp/mpi_exchange_bench    over TCP by UCX
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum Kind { kBarrier, kReduce, kGather };

static void Call(enum Kind kind, float* values, char* all, long num_bytes, int size) {
  if (kind == kBarrier) MPI_Barrier(MPI_COMM_WORLD);
  if (kind == kReduce)
    MPI_Allreduce(MPI_IN_PLACE, values, (int)(num_bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  if (kind == kGather) {
    const int mine = (int)(num_bytes / size);
    MPI_Allgather(values, mine, MPI_BYTE, all, mine, MPI_BYTE, MPI_COMM_WORLD);
  }
}

// Microseconds of one call: the best of five rounds.
static double Time(enum Kind kind, float* values, char* all, long num_bytes, int size) {
  long num_calls = (64L << 20) / (num_bytes > 0 ? num_bytes : 1);
  if (num_calls < 10) num_calls = 10;
  if (num_calls > 1000) num_calls = 1000;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (long i = 0; i < num_calls; ++i) Call(kind, values, all, num_bytes, size);
    const double us = 1e6 * (MPI_Wtime() - begin) / (double)num_calls;
    if (round == 0 || us < best) best = us;
  }
  return best;
}

int main(int argc, char** argv) {
  int rank = 0, size = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const double barrier = Time(kBarrier, NULL, NULL, 0, size);
  if (rank == 0) printf("%-14s barrier %9.2f us\n", "MPI", barrier);
  const long sizes[] = {64, 8L << 10, 64L << 10, 1L << 20, 16L << 20};
  for (int i = 0; i < 5; ++i) {
    float* values = malloc((size_t)sizes[i]);
    char* all = malloc((size_t)sizes[i]);
    for (long k = 0; k < sizes[i] / 4; ++k) values[k] = 1.0F;
    const double reduce = Time(kReduce, values, all, sizes[i], size);
    const double gather = Time(kGather, values, all, sizes[i], size);
    if (rank == 0)
      printf("%-14s %9ld bytes  all-reduce %9.2f us  all-gather %9.2f us\n", "MPI", sizes[i], reduce, gather);
    free(values);
    free(all);
  }
  MPI_Finalize();
  return 0;
}
