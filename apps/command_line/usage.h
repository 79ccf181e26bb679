// Texts of the command line about itself: examples behind every help text, and the options that all commands
// share. Errors name the command, the option and the probable intention.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/command_line/command.h"
#include "apps/command_line/settings.h"

namespace dsv4::apps {

// Sets help and error texts of the program and its commands; both arguments must outlive its CLI::App. Call
// when all options are there.
void DescribeUsage(Commands& commands, const Settings& settings);

// The one of `names` that `got` may have been meant for; empty: none is close.
std::string Nearest(std::string_view got, const std::vector<std::string>& names);
// "; did you mean X?", where one of `names` is close.
std::string DidYouMean(std::string_view got, const std::vector<std::string>& names);

// "dsv4 help [COMMAND]" and "dsv4 version" as the flags that mean the same.
std::vector<std::string> ExpandHelpWords(int argc, char** argv);

// Throws CLI::ValidationError for an option that was given an empty text, of all commands that were parsed. An unset variable of a script is no
// wish for the default.
void RefuseEmptyTexts(const CLI::App& app);

// Complaint where help was asked for on a command that is none, after parsing; else empty.
std::string UnknownHelp(const Commands& commands, const Settings& settings);

// "dsv4 0.1.0 (commit 1a2b3c4, backends reference cpu cuda, this machine avx512)".
std::string VersionText();

}  // namespace dsv4::apps
