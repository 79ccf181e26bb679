// Walks at random under grammars with the vocabulary of a tokenizer, for mask_oracle_test.py: a line {"kind",
// "rule", "walks", "steps"} on standard input gives a line {"walks": [[{"mask", "token"}, ...]]} or
// {"error"}. A mask is hexadecimal, bit id % 4 of digit id / 4; the token is what was chosen of it; stop ids
// are -1. The one argument is tokenizer.json.
#include <cstdio>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/matcher.h"
#include "grammar/rules/answer_grammar.h"
#include "tokenizer/tokenizer.h"

namespace {

using dsv4::Json;
namespace grammar = dsv4::grammar;
using Kind = grammar::ContentRule::Kind;

Json Walks(const Json& request, const std::shared_ptr<const grammar::TokenTrie>& trie, grammar::TokenId stop,
           std::mt19937& random) {
  static const std::map<std::string, Kind> kKinds = {
      {"regex", Kind::kRegex}, {"choice", Kind::kChoice},   {"gbnf", Kind::kGbnf},
      {"lark", Kind::kLark},   {"json", Kind::kJsonSchema}, {"tag", Kind::kStructuralTag}};
  const auto program = grammar::CompileAnswer(
      {.content = grammar::ContentKind::kRule,
       .rule = {.kind = kKinds.at(request.at("kind")), .text = request.at("rule"), .label = "rule"}});
  if (!program) return {{"error", program.error().message()}};
  Json walks = Json::array();
  for (int walk = 0; walk < request.at("walks"); ++walk) {
    grammar::Matcher matcher(*program, trie, {stop});
    grammar::TokenMask mask(matcher.num_ids());
    Json steps = Json::array();
    for (int step = 0; step < request.at("steps") && !matcher.IsFinished(); ++step) {
      matcher.Mask(mask);
      std::string hex;
      std::vector<grammar::TokenId> ids;
      for (grammar::TokenId id = 0; id < matcher.num_ids(); ++id) {
        if (id % 4 == 0) hex.push_back('0');
        if (!mask.IsAllowed(id)) continue;
        const int digit = (hex.back() <= '9' ? hex.back() - '0' : hex.back() - 'a' + 10) | 1 << (id % 4);
        hex.back() = "0123456789abcdef"[digit];
        if (id != stop) ids.push_back(id);
      }
      grammar::TokenId token = stop;
      if (!ids.empty() && !(mask.IsAllowed(stop) && random() % 6 == 0)) token = ids[random() % ids.size()];
      steps.push_back({{"mask", hex}, {"token", token == stop ? -1 : token}});
      if (!matcher.Accept(token).ok()) return {{"error", "a token of the mask was not taken"}};
    }
    walks.push_back(std::move(steps));
  }
  return {{"walks", std::move(walks)}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto tokenizer = dsv4::tokenizer::Tokenizer::Load(argv[1]);
  if (!tokenizer) return 3;
  const auto trie = grammar::TokenTrie::Create(*tokenizer, {});
  if (!trie) return 3;
  const grammar::TokenId stop = *tokenizer->FindToken("<｜end▁of▁sentence｜>");
  std::mt19937 random(11);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout
        << Walks(Json::parse(line), *trie, stop, random).dump(-1, ' ', false, Json::error_handler_t::replace)
        << '\n';
  }
}
