// Rules that choose the kernels of norms, rope, rounding, pools, stores, SwiGLU and the combine.
#include "backend/cuda/lowering/select/rows.h"

#include <array>

namespace dsv4::backend::cuda {
namespace {

bool AreManyHeads(const HeadsShape& s) {
  return s.x_dtype == DType::kBF16 && s.num_tokens >= kMinManyHeadsTokens && s.num_heads >= kMinManyHeads;
}
bool FitsManyNorms(const HeadsShape& s, const DeviceLimits&) {
  return AreManyHeads(s) && s.y_dtype == DType::kBF16 && (s.width == 512 || s.width == 128) &&
         IsAligned(s.x, 8) && IsAligned(s.y, 8);
}
bool FitsManyRopes(const HeadsShape& s, const DeviceLimits&) {
  return AreManyHeads(s) && s.width % 2 == 0 && IsAligned(s.x, 4);
}

bool FitsOneTrackHeadRows(const RowsShape& s, const DeviceLimits&) {
  return s.one_track && s.of_heads && s.is_bf16 && s.num_rows >= kManyHeadRows;
}
bool FitsManyRows(const RowsShape& s, const DeviceLimits&) {
  return s.one_track && s.norm_first && s.is_bf16 && s.num_rows >= kManyRows;
}

bool FitsScaledRow(const ScaleShape& s, const DeviceLimits&) { return s.count <= kMaxRowWidth; }

bool FitsStoreStep(const StoreShape& s, const DeviceLimits&) {
  return (s.dtype == DType::kBF16 || s.dtype == DType::kF32) && (!s.packs || s.scale == CacheScale::kE8m0) &&
         s.num_runs <= kMaxJoinedRuns && s.continues_rows;
}
bool FitsPack(const StoreShape& s, const DeviceLimits&) { return s.packs; }

bool FitsPooledRows(const PoolShape& s, const DeviceLimits&) {
  return s.tokens_of_entry <= kMaxPooledInRows && s.width <= kMaxPooledWidth && s.width % 4 == 0 &&
         s.dtype == DType::kBF16;
}

bool FitsSwigluBySeveral(const ElementsShape& s, const DeviceLimits&) {
  return s.dtype == DType::kBF16 && s.count >= kManyElements && s.width % 8 == 0 && IsAligned(s.a, 16) &&
         IsAligned(s.b, 16) && IsAligned(s.y, 16);
}
bool FitsCombineBySeveral(const ElementsShape& s, const DeviceLimits&) {
  return s.count >= kManyElements && s.count % 4 == 0 && IsAligned(s.a, 16) && IsAligned(s.b, 16) &&
         IsAligned(s.y, 16);
}

constexpr std::array<Rule<HeadsPath, HeadsShape>, 2> kHeadNormRules = {{
    {HeadsPath::kManyHeads, "rows/many_heads", "from 257 tokens of 8 heads in bf16, width 128 or 512",
     FitsManyNorms},
    {HeadsPath::kRows, "rows/row_tracks", "the rest: a step on rows", FitsAll<HeadsShape>},
}};
constexpr std::array<Rule<HeadsPath, HeadsShape>, 2> kRopeRules = {{
    {HeadsPath::kManyHeads, "rows/many_heads", "from 257 tokens of 8 heads in bf16", FitsManyRopes},
    {HeadsPath::kRows, "rows/row_tracks", "the rest: a step on rows", FitsAll<HeadsShape>},
}};
constexpr std::array<Rule<RowsPath, RowsShape>, 3> kRowsRules = {{
    {RowsPath::kHeadRows, "rows/head_rows", "steps on the heads of 1024 rows or more in bf16",
     FitsOneTrackHeadRows},
    {RowsPath::kManyRows, "rows/many_rows", "rms_norm and what follows on the same 257 rows or more in bf16",
     FitsManyRows},
    {RowsPath::kRowTracks, "rows/row_tracks", "all other steps on rows", FitsAll<RowsShape>},
}};
constexpr std::array<Rule<ScalePath, ScaleShape>, 2> kScaleRules = {{
    {ScalePath::kRows, "rows/row_tracks", "up to 16384 elements: a step on one row", FitsScaledRow},
    {ScalePath::kEach, "elementwise/elementwise", "the rest: one a thread", FitsAll<ScaleShape>},
}};
constexpr std::array<Rule<StorePath, StoreShape>, 3> kStoreRules = {{
    {StorePath::kRows, "rows/row_tracks",
     "up to 64 runs of rows that the launch in front has, as they are or packed by powers of two",
     FitsStoreStep},
    {StorePath::kPack, "rows/store_rows", "rows that are packed", FitsPack},
    {StorePath::kCopy, "rows/store_rows", "the rest: bytes are copied", FitsAll<StoreShape>},
}};
constexpr std::array<Rule<RoundPath, RoundShape>, 2> kRoundRules = {{
    {RoundPath::kEights, "rows/many_heads",
     "from 1024 rows in bf16, groups of 16 or 32: eight columns a thread",
     [](const RoundShape& s, const DeviceLimits&) {
       return s.dtype == DType::kBF16 && s.num_rows >= kManyHeadRows &&
              (s.group == kRegisterHalfGroup || s.group == kRegisterWarpGroup) && s.width % s.group == 0 &&
              IsAligned(s.x, 16);
     }},
    {RoundPath::kRows, "rows/row_tracks", "the rest: a step on rows", FitsAll<RoundShape>},
}};
constexpr std::array<Rule<PoolPath, PoolShape>, 2> kPoolRules = {{
    {PoolPath::kRows, "rows/row_tracks",
     "entries of up to 8 tokens, up to 512 columns by 4, in bf16: a step on rows", FitsPooledRows},
    {PoolPath::kPool, "rows/compressor_pool", "the rest: many blocks an entry", FitsAll<PoolShape>},
}};
constexpr std::array<Rule<ElementsPath, ElementsShape>, 2> kSwigluRules = {{
    {ElementsPath::kSeveral, "elementwise/elementwise", "from 2^20 elements in bf16: eight a thread",
     FitsSwigluBySeveral},
    {ElementsPath::kEach, "elementwise/elementwise", "the rest: one a thread", FitsAll<ElementsShape>},
}};
constexpr std::array<Rule<ElementsPath, ElementsShape>, 2> kCombineRules = {{
    {ElementsPath::kSeveral, "elementwise/elementwise", "from 2^20 elements: four a thread",
     FitsCombineBySeveral},
    {ElementsPath::kEach, "elementwise/elementwise", "the rest: one a thread", FitsAll<ElementsShape>},
}};

}  // namespace

std::span<const Rule<HeadsPath, HeadsShape>> HeadNormRules() { return kHeadNormRules; }
std::span<const Rule<HeadsPath, HeadsShape>> RopeRules() { return kRopeRules; }
std::span<const Rule<RowsPath, RowsShape>> RowsRules() { return kRowsRules; }
std::span<const Rule<ScalePath, ScaleShape>> ScaleRules() { return kScaleRules; }
std::span<const Rule<StorePath, StoreShape>> StoreRules() { return kStoreRules; }
std::span<const Rule<RoundPath, RoundShape>> RoundRules() { return kRoundRules; }
std::span<const Rule<PoolPath, PoolShape>> PoolRules() { return kPoolRules; }
std::span<const Rule<ElementsPath, ElementsShape>> SwigluRules() { return kSwigluRules; }
std::span<const Rule<ElementsPath, ElementsShape>> MoeCombineRules() { return kCombineRules; }

bool PacksInRegisters(const CacheFormat& format, int64_t width) {
  if (width > kMaxRegisterRow || format.scale != CacheScale::kE8m0) return false;
  if (format.code == CacheCode::kE4m3)
    return IsRegisterE4m3Group(format.group) && format.num_coded % format.group == 0;
  return format.group == kRegisterE2m1Group && format.num_coded == width;
}

}  // namespace dsv4::backend::cuda
