// Toy tokenizer files, the release's tokenizer, a naive BPE and random texts, for tests and benches.
#include "tokenizer/testing.h"

#include <zstd.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "base/read_file.h"
#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pre_tokenizer.h"

namespace dsv4::tokenizer::testing {
namespace {

using nlohmann::json;

[[noreturn]] void Die(const std::string& message) {
  std::cerr << message << '\n';
  std::abort();
}

json AddedTokenJson(std::string_view content, int id, bool special) {
  return {{"id", id},        {"content", content}, {"single_word", false},  {"lstrip", false},
          {"rstrip", false}, {"special", special}, {"normalized", !special}};
}

// chat-encoding.md section 1: what the npm file lacks.
constexpr std::pair<int, std::string_view> kV4Tokens[] = {
    {128821, "<think>"},          {128822, "</think>"},
    {128825, "｜DSML｜"},         {128826, "<｜begin▁sys｜>"},
    {128827, "<｜end▁sys｜>"},    {128828, "<｜latest_reminder｜>"},
    {128829, "<｜action｜>"},     {128830, "<｜query｜>"},
    {128831, "<｜authority｜>"},  {128832, "<｜domain｜>"},
    {128833, "<｜task｜>"},       {128834, "<｜political｜>"},
    {128835, "<｜entity｜>"},     {128836, "<｜title｜>"},
    {128837, "<｜safety｜>"},     {128838, "<｜answer｜>"},
    {128839, "<｜search｜>"},     {128840, "<dsml:"},
    {128841, "</dsml:"},          {128842, "<｜search▁begin｜>"},
    {128843, "<｜search▁end｜>"}, {128844, "<｜extracted_url｜>"},
    {128845, "<｜read_url｜>"},   {128846, "<｜end_of_query｜>"},
};

}  // namespace

json ToyFile() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[ByteToAlphabet(static_cast<unsigned char>(byte))] = (7 * byte) % 256;
  json merges = json::array();
  int next_id = 400;
  for (const auto& [left, right] : std::initializer_list<std::pair<std::string, std::string>>{{"t", "h"},
                                                                                              {"th", "e"},
                                                                                              {"Ġ", "the"},
                                                                                              {"a", "b"},
                                                                                              {"ab", "ab"},
                                                                                              {"b", "a"},
                                                                                              {"<", "th"},
                                                                                              {"a", "a"}}) {
    merges.push_back(left + " " + right);
    vocab[left + right] = next_id++;
  }
  json added = json::array();
  int id = 300;
  for (const std::string_view token : {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"}) {
    added.push_back(AddedTokenJson(token, id--, true));
  }
  for (const std::string_view token :
       {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<t", "<thi"}) {
    added.push_back(AddedTokenJson(token, id--, false));
  }
  json steps = json::array();
  for (const SplitRule& rule : V4SplitRules()) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", rule.pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  steps.push_back(byte_level);
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", json::array()}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"unk_token", nullptr}, {"vocab", vocab}, {"merges", merges}}}};
}

Tokenizer ParseOrDie(const json& file) {
  auto tokenizer = Tokenizer::Parse(file.dump(), "test tokenizer");
  if (!tokenizer) Die(tokenizer.error().ToString());
  return std::move(*tokenizer);
}

std::string ReadReleaseFile() {
  const auto packed = ReadFile("tests/fixtures/tokenizer/deepseek-v3-tokenizer.json.zst");
  if (!packed) Die(packed.error().ToString() + " (run from the root of the repository)");
  std::string text(ZSTD_getFrameContentSize(packed->data(), packed->size()), '\0');
  const size_t size = ZSTD_decompress(text.data(), text.size(), packed->data(), packed->size());
  if (ZSTD_isError(size) || size != text.size()) Die("deepseek-v3-tokenizer.json.zst does not decompress");
  return text;
}

std::string ReadReleaseFileWithV4Tokens() {
  std::string text = ReadReleaseFile();
  // Spliced in as text: the document as a tree would take longer than all tests.
  constexpr std::string_view kKey = "\"added_tokens\":";
  const size_t key = text.find(kKey);
  const size_t list = key == std::string::npos ? key : text.find('[', key + kKey.size());
  if (list == std::string::npos) Die("deepseek-v3-tokenizer.json has no added_tokens");
  std::string entries;
  for (const auto& [id, content] : kV4Tokens) entries += AddedTokenJson(content, id, false).dump() + ",";
  text.insert(list + 1, entries);
  return text;
}

std::vector<TokenId> NaiveBpe(const Bpe& bpe, std::string_view piece) {
  std::vector<TokenId> ids;
  for (const char c : piece) ids.push_back(bpe.ByteToken(static_cast<unsigned char>(c)));
  while (true) {
    size_t best = 0;
    Bpe::Merge best_merge{Bpe::kNoRank, 0};
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const Bpe::Merge merge = bpe.Find(ids[i], ids[i + 1]);
      if (merge.rank < best_merge.rank) {
        best = i;
        best_merge = merge;
      }
    }
    if (best_merge.rank == Bpe::kNoRank) return ids;
    ids[best] = best_merge.merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

std::string RandomText(std::mt19937* random, size_t num_chars) {
  // Ranges of code points, each drawn with the same probability: the classes of the scanner, their borders,
  // and text that looks like text.
  static constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {'a', 'z'},         {'A', 'Z'},         {'a', 'd'},         {'0', '9'},         {' ', ' '},
      {' ', ' '},         {'\n', '\n'},       {'\r', '\r'},       {'\t', '\r'},       {0x00, 0x1F},
      {'!', '/'},         {':', '@'},         {'[', '`'},         {'{', 0x7F},        {0x80, 0x9F},
      {0x85, 0x85},       {0xA0, 0xBF},       {0xC0, 0x17F},      {0x300, 0x36F},     {0x400, 0x4FF},
      {0x5D0, 0x6FF},     {0x900, 0x97F},     {0xE00, 0xE7F},     {0x180E, 0x180E},   {0x1680, 0x1680},
      {0x2000, 0x200F},   {0x2010, 0x206F},   {0x2070, 0x218F},   {0x2190, 0x23FF},   {0x2460, 0x24FF},
      {0x3000, 0x303F},   {0x303E, 0x3041},   {0x3040, 0x30FF},   {0x3096, 0x309F},   {0x30FB, 0x3105},
      {0x4DFE, 0x4E02},   {0x4E00, 0x9FA5},   {0x9FA3, 0x9FA8},   {0xAC00, 0xD7A3},   {0xE000, 0xE010},
      {0xFE00, 0xFE0F},   {0xFF00, 0xFFEF},   {0xFFFD, 0xFFFF},   {0x1D400, 0x1D7FF}, {0x1F300, 0x1F64F},
      {0x20000, 0x20010}, {0xE0100, 0xE01EF}, {0x10000, 0x10FFFF}};
  // Two ranges per text come up again and again, or long runs of one class would never be seen.
  constexpr size_t kNumRanges = std::size(kRanges);
  const auto draw = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(*random);
  };
  const std::array<size_t, 2> favourites = {draw(0, kNumRanges - 1), draw(0, kNumRanges - 1)};
  std::string text;
  for (size_t i = 0; i < num_chars; ++i) {
    const bool is_favourite = draw(0, 1) == 0;
    const auto& [low, high] = kRanges[is_favourite ? favourites[draw(0, 1)] : draw(0, kNumRanges - 1)];
    AppendUtf8(draw(low, high), &text);
  }
  return text;
}

}  // namespace dsv4::tokenizer::testing
