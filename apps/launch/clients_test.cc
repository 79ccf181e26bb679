// Tests of client settings: address, model, key and quoting.
#include "apps/launch/clients.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace dsv4::apps {
namespace {

const ServerAddress kServer{.url = "http://127.0.0.1:8000", .model = "tiny \"x\"", .key = "se'cret"};

// Every client is told where the server is, and its key.
TEST(Clients, EachGetsAddressModelAndKey) {
  for (const std::string& name : ClientNames()) {
    const auto setup = SetupOf(name, kServer, "/state");
    ASSERT_TRUE(setup) << name;
    std::string all;
    for (const auto& [key, value] : setup->environment) all += key + "=" + value + "\n";
    for (const std::string& argument : setup->arguments) all += argument + "\n";
    for (const auto& [path, text] : setup->files) all += text;
    EXPECT_NE(all.find(kServer.url), std::string::npos) << name;
    EXPECT_NE(all.find("tiny"), std::string::npos) << name;
    EXPECT_NE(all.find(kServer.key), std::string::npos) << name;
  }
  EXPECT_FALSE(SetupOf("emacs", kServer, "/state"));
}

TEST(Clients, NamesWithQuotesStayOneWord) {
  const auto codex = SetupOf("codex", kServer, "/state");
  EXPECT_TRUE(std::ranges::count(codex->arguments, "model=\"tiny \\\"x\\\"\""));
  const std::string shell = AsShell(*codex);
  EXPECT_NE(shell.find("export DSV4_API_KEY='se'\\''cret'"), std::string::npos) << shell;
  EXPECT_NE(shell.find("'model=\"tiny \\\"x\\\"\"'"), std::string::npos) << shell;
}

}  // namespace
}  // namespace dsv4::apps
