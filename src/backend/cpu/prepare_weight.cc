// Op prepare_weight on the CPU: weights stay in the mapped pages, since kernels unpack the stored bytes.
#include "backend/cpu/cpu_ops.h"

namespace dsv4::backend::cpu {

// The kernels unpack the stored bytes in registers, so weights stay in the file's pages.
Status PrepareWeight(ops::OpContext&, const ops::PrepareWeightArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  *args.prepared = *args.source;
  return {};
}

}  // namespace dsv4::backend::cpu
