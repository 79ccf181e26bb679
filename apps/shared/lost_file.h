// End of a process when bytes of a mapped file are gone: at once or in order, it says which file it was.
#pragma once

namespace dsv4::apps {

// From now on a touch of a mapped file's unreadable bytes ends the process with kExitBadInput. A line on
// standard error names the file. Bytes are unreadable when another process truncated the file or the disk
// failed. Other SIGBUS end it as ever.
void ReportLostFiles();

// From now on such a touch finds zeros, and io::LostFile says which file it was. For a server, which has
// answers in flight that must end with an error of their own: the model refuses every step from then on.
void GoOnWithoutLostFiles();

}  // namespace dsv4::apps
