// Reference scale: every element times one factor, rounded once.
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

Status Scale(ops::OpContext&, const ops::ScaleArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  std::vector<double> x = LoadAll(args.x);
  for (double& value : x) value *= static_cast<double>(args.factor);
  StoreValues(x, args.y.data, args.y.dtype, 0);
  return {};
}

}  // namespace dsv4::backend::reference
