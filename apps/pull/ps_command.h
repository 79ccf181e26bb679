// `dsv4 ps`: the dsv4 processes of this machine that hold a model.
#pragma once

namespace dsv4::apps {

int RunPsCommand(bool json);

}  // namespace dsv4::apps
