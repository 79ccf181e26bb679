// The op functions of the reference backend, one file each (hyper_connection.cc holds the three of mHC).
// Contracts are in ops/<op>.h.
#pragma once

#include "base/parallel.h"
#include "ops/op_table.h"

namespace dsv4::backend::reference {

#define DSV4_DECLARE_OP(name, Op) Status Op(ops::OpContext& context, const ops::Op##Args& args);
DSV4_FOR_EVERY_OP(DSV4_DECLARE_OP)
#undef DSV4_DECLARE_OP

}  // namespace dsv4::backend::reference
