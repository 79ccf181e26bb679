// Reference prepare_weight: the weight stays where it lies in the mapped file.
#include "backend/reference/reference_ops.h"

namespace dsv4::backend::reference {

// The reference reads every stored format as it lies in the file: it borrows.
Status PrepareWeight(ops::OpContext&, const ops::PrepareWeightArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  *args.prepared = *args.source;
  return {};
}

}  // namespace dsv4::backend::reference
