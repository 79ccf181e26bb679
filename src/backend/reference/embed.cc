// Reference embed: the embedding row of each token, copied to all residual streams.
#include <fmt/format.h>

#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

Status Embed(ops::OpContext&, const ops::EmbedArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t num_tokens = args.token_ids.shape[0];
  const int64_t vocab_size = args.table.shape[0];
  const int64_t dim = args.table.shape[1];
  const int64_t hc_mult = args.streams.shape[1];
  std::vector<double> row(static_cast<size_t>(dim));
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int64_t id = LoadInteger(args.token_ids, t);
    if (id < 0 || id >= vocab_size) {
      return OutOfRange(fmt::format("op embed: token_ids[{}]: {}, want 0 to {}", t, id, vocab_size - 1));
    }
    LoadRow(args.table, id, row);
    for (int64_t i = 0; i < hc_mult; ++i) {
      StoreValues(row, args.streams.data, args.streams.dtype, (t * hc_mult + i) * dim);
    }
  }
  return {};
}

}  // namespace dsv4::backend::reference
