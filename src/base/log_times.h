// Log lines with the time in front, as a program wants that runs for weeks.
#pragma once

namespace dsv4 {

void SetLogTimes(bool on);

}  // namespace dsv4
