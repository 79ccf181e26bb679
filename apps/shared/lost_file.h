// What happens when bytes of a mapped file are gone: the process ends and says which file it was.
#pragma once

namespace dsv4::apps {

// From now on a touch of a mapped file's bytes that cannot be read (another process truncated it, the disk failed) ends the
// process with kExitBadInput and a line on standard error that names the file. Other SIGBUS end it as ever.
void ReportLostFiles();

}  // namespace dsv4::apps
