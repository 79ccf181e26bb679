// A hash of the code that runs.
#include "base/program.h"

#include <link.h>
#include <xxhash.h>

#include <cstddef>

namespace dsv4 {
namespace {

struct Search {
  uintptr_t inside = 0;
  uint64_t hash = 0;
};

// Visits one object of the process; 1 ends the search.
int HashWhereInside(dl_phdr_info* object, size_t, void* data) {
  Search& search = *static_cast<Search*>(data);
  const auto each = [&](auto&& visit) {
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = object->dlpi_phdr[i];
      if (part.p_type == PT_LOAD) visit(part, object->dlpi_addr + part.p_vaddr);
    }
  };
  bool found = false;
  each([&](const ElfW(Phdr) & part, uintptr_t begin) {
    found = found || (begin <= search.inside && search.inside < begin + part.p_memsz);
  });
  if (!found) return 0;
  // Writable parts hold addresses, which differ from start to start.
  each([&](const ElfW(Phdr) & part, uintptr_t begin) {
    if ((part.p_flags & PF_W) == 0 && (part.p_flags & PF_R) != 0)
      search.hash = XXH3_64bits_withSeed(reinterpret_cast<const void*>(begin), part.p_filesz, search.hash);
  });
  return 1;
}

}  // namespace

uint64_t ProgramHash() {
  static const uint64_t hash = [] {
    Search search{.inside = reinterpret_cast<uintptr_t>(&HashWhereInside)};
    ::dl_iterate_phdr(HashWhereInside, &search);
    return search.hash;
  }();
  return hash;
}

}  // namespace dsv4
