#include "cli/line_editor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/switches.h"
#include "cli/command.h"

namespace argent::cli {
namespace {

constexpr int kForever = -1;
constexpr int kEscapeMs = 50;  // an escape without a byte behind it by then was the Escape key

// The terminal hands out bytes as they are typed, without echo and signals; as it was when this ends.
class RawMode {
 public:
  RawMode() {
    if (::tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios raw = before_;
    raw.c_iflag &= tcflag_t(~(BRKINT | ICRNL | INLCR | IGNCR | INPCK | ISTRIP | IXON));
    raw.c_lflag &= tcflag_t(~(ECHO | ICANON | IEXTEN | ISIG));
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    on_ = ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
  }
  ~RawMode() {
    if (on_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  RawMode(const RawMode&) = delete;
  RawMode& operator=(const RawMode&) = delete;

 private:
  termios before_{};
  bool on_ = false;
};

winsize terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 8) size.ws_col = 80;
  if (size.ws_row < 2) size.ws_row = 24;
  return size;
}

void put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno != EINTR) return;
    if (n > 0) text.remove_prefix(size_t(n));
  }
}

// One message a line in the history file: line breaks and backslashes are escaped.
std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\\')
      out += "\\\\";
    else
      out += c;
  }
  return out;
}

std::string unescaped(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size())
      out += line[i];
    else
      out += line[++i] == 'n' ? '\n' : line[i];
  }
  return out;
}

size_t sequence_length(char first) {
  const uint8_t c = uint8_t(first);
  return c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1;
}

}  // namespace

enum class LineEditor::Key {
  text,
  enter,
  newline,
  left,
  right,
  up,
  down,
  home,
  end,
  word_left,
  word_right,
  backspace,
  erase,
  kill_word,
  kill_start,
  kill_end,
  yank,
  redraw,
  paste,
  interrupt,
  eof,
  closed,
  none,
};

LineEditor::LineEditor(std::string history_file) : history_file_(std::move(history_file)) {
  const std::string term = environment("TERM");
  interactive_ = ::isatty(STDIN_FILENO) == 1 && stdout_is_terminal() && !term.empty() && term != "dumb";
  if (!interactive_ || history_file_.empty()) return;
  std::ifstream file(history_file_);
  for (std::string line; std::getline(file, line);) history_.push_back(unescaped(line));
  if (history_.size() > kHistory) history_.erase(history_.begin(), history_.end() - kHistory);
}

void LineEditor::remember(const std::string& text) {
  if (!interactive_ || text.empty() || (!history_.empty() && history_.back() == text)) return;
  history_.push_back(text);
  if (history_file_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(history_file_).parent_path(), error);
  const bool rewrite = history_.size() > 2 * kHistory;  // now and then, not on every message
  if (rewrite) history_.erase(history_.begin(), history_.end() - kHistory);
  const int fd = ::open(history_file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (rewrite ? O_TRUNC : O_APPEND), 0600);
  if (fd < 0) return;  // a history that cannot be kept is no reason to stop
  std::string lines;
  if (rewrite) {
    for (const std::string& entry : history_) lines += escaped(entry) + "\n";
  } else {
    lines = escaped(text) + "\n";
  }
  if (::write(fd, lines.data(), lines.size()) < 0) {
    // as above
  }
  ::close(fd);
}

Result<LineEditor::Line> LineEditor::read(std::string_view prompt, std::string_view initial) {
  if (interactive_) return edit(prompt, initial);
  if (::isatty(STDIN_FILENO) == 1) to_stderr("{}", prompt);
  return read_plain();
}

Result<bool> LineEditor::read_byte(char& byte, int timeout_ms) {
  if (pending_.empty()) {
    if (timeout_ms >= 0) {
      pollfd waiting{STDIN_FILENO, POLLIN, 0};
      if (::poll(&waiting, 1, timeout_ms) <= 0) return false;
    }
    char bytes[4096];
    ssize_t n;
    do n = ::read(STDIN_FILENO, bytes, sizeof bytes);
    while (n < 0 && errno == EINTR && !interrupted());
    if (n < 0 && errno == EINTR) return false;
    if (n < 0) return fail(Code::io, "cannot read standard input: {}", std::strerror(errno));
    if (n == 0) return false;
    pending_.assign(bytes, size_t(n));
  }
  byte = pending_[0];
  pending_.erase(0, 1);
  return true;
}

Result<LineEditor::Line> LineEditor::read_plain() {
  std::string text;
  for (;;) {
    size_t newline, searched = 0;
    while ((newline = pending_.find('\n', searched)) == std::string::npos) {
      searched = pending_.size();
      char bytes[4096];
      const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (n < 0 && errno == EINTR) {
        if (interrupted()) return Line{End::interrupt, ""};
        continue;
      }
      if (n < 0) return fail(Code::io, "cannot read standard input: {}", std::strerror(errno));
      if (n == 0) break;
      pending_.append(bytes, size_t(n));
    }
    const bool last = newline == std::string::npos;
    if (last && pending_.empty()) return text.empty() ? Line{End::eof, ""} : Line{End::line, joined_message(text)};
    std::string line = pending_.substr(0, newline);
    pending_.erase(0, last ? pending_.size() : newline + 1);
    if (line.ends_with('\r')) line.pop_back();
    text += line;
    if (!wants_more_lines(text)) return Line{End::line, joined_message(text)};
    text += '\n';
  }
}

// One key; `text` gets a character that was typed.
Result<LineEditor::Key> LineEditor::read_key(std::string& text) {
  static constexpr std::pair<char, Key> kControls[] = {
      {1, Key::home},         // Ctrl-A
      {2, Key::left},         // Ctrl-B
      {3, Key::interrupt},    // Ctrl-C
      {4, Key::eof},          // Ctrl-D
      {5, Key::end},          // Ctrl-E
      {6, Key::right},        // Ctrl-F
      {8, Key::backspace},    // Ctrl-H
      {9, Key::text},         // Tab
      {10, Key::enter},       // what was typed before the terminal was ours
      {11, Key::kill_end},    // Ctrl-K
      {12, Key::redraw},      // Ctrl-L
      {13, Key::enter},       // Enter
      {14, Key::down},        // Ctrl-N
      {16, Key::up},          // Ctrl-P
      {21, Key::kill_start},  // Ctrl-U
      {23, Key::kill_word},   // Ctrl-W
      {25, Key::yank},        // Ctrl-Y
      {127, Key::backspace},
  };
  char c = 0;
  ARGENT_LET(const bool got, read_byte(c, kForever));
  if (!got) return Key::closed;
  if (c == 27) return read_escape();
  for (const auto& [byte, key] : kControls)
    if (byte == c) {
      text = c;
      return key;
    }
  if (uint8_t(c) < 0x20) return Key::none;
  text = c;
  for (const size_t n = sequence_length(c); text.size() < n;) {
    ARGENT_LET(const bool more, read_byte(c, kEscapeMs));
    if (!more) return Key::none;
    text += c;
  }
  return text.size() == 1 && uint8_t(text[0]) >= 0x80 ? Key::none : Key::text;  // a lone byte is no UTF-8
}

// What stands behind an escape: the sequences of xterm and its kin, and Alt with a letter.
Result<LineEditor::Key> LineEditor::read_escape() {
  static constexpr std::pair<char, Key> kAlt[] = {
      {10, Key::newline}, {13, Key::newline}, {'b', Key::word_left}, {'f', Key::word_right}, {127, Key::kill_word}};
  static constexpr std::pair<std::string_view, Key> kSequences[] = {
      {"A", Key::up},           {"B", Key::down},          {"C", Key::right},
      {"D", Key::left},         {"1;5C", Key::word_right}, {"1;3C", Key::word_right},
      {"1;5D", Key::word_left}, {"1;3D", Key::word_left},  {"H", Key::home},
      {"1~", Key::home},        {"7~", Key::home},         {"F", Key::end},
      {"4~", Key::end},         {"8~", Key::end},          {"3~", Key::erase},
      {"200~", Key::paste}};
  char c = 0;
  ARGENT_LET(const bool got, read_byte(c, kEscapeMs));
  if (!got) return Key::none;
  for (const auto& [byte, key] : kAlt)
    if (byte == c) return key;
  if (c != '[' && c != 'O') return Key::none;
  std::string sequence;
  do {
    ARGENT_LET(const bool more, read_byte(c, kEscapeMs));
    if (!more) return Key::none;
    sequence += c;
  } while (c < 0x40 && sequence.size() < 16);
  for (const auto& [text, key] : kSequences)
    if (text == sequence) return key;
  return Key::none;
}

// What stands between the marks of a bracketed paste, with line breaks as \n and without other control characters.
Result<std::string> LineEditor::read_paste() {
  static constexpr std::string_view kEnd = "\033[201~";
  std::string raw;
  while (!raw.ends_with(kEnd)) {
    char c = 0;
    ARGENT_LET(const bool got, read_byte(c, kForever));
    if (!got) break;
    raw += c;
  }
  if (raw.ends_with(kEnd)) raw.resize(raw.size() - kEnd.size());
  std::string text;
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] == '\r') {
      text += '\n';
      if (i + 1 < raw.size() && raw[i + 1] == '\n') ++i;
    } else if (uint8_t(raw[i]) >= 0x20 || raw[i] == '\n' || raw[i] == '\t') {
      text += raw[i];
    }
  }
  return text;
}

// Draws the message from where the last drawing began. A message with more rows than the terminal shows those around
// the cursor.
void LineEditor::draw(std::string_view prompt, bool final) {
  const winsize size = terminal_size();
  const size_t columns = size.ws_col, height = size.ws_row;
  const size_t indent = display_width(prompt);
  const std::string more = std::string(indent > 2 ? indent - 2 : 0, ' ') + (indent >= 2 ? "… " : "");
  std::vector<std::string> rows{std::string(prompt)};
  size_t column = indent, cursor_row = 0, cursor_column = 0;
  const auto place_cursor = [&] { cursor_row = rows.size() - 1, cursor_column = column; };
  const auto new_row = [&](std::string_view begin, size_t width) { rows.emplace_back(begin), column = width; };
  const std::string_view text = buffer_.text();
  for (size_t i = 0; i < text.size();) {
    if (i == buffer_.cursor()) place_cursor();
    if (text[i] == '\n') {
      new_row(more, indent);
      ++i;
      continue;
    }
    const size_t length = std::min(sequence_length(text[i]), text.size() - i);
    std::string_view shown = text.substr(i, length);
    if (shown == "\t") shown = "  ";
    const size_t width = display_width(shown);
    if (column + width > columns) {
      new_row("", 0);
      if (i == buffer_.cursor()) place_cursor();
    }
    rows.back() += shown;
    column += width;
    i += length;
  }
  if (column >= columns) new_row("", 0);
  if (buffer_.cursor() == text.size()) place_cursor();

  if (final)
    top_ = 0;
  else if (rows.size() <= height)
    top_ = 0;
  else
    top_ = std::min(std::max(std::min(top_, cursor_row), cursor_row + 1 >= height ? cursor_row + 1 - height : 0),
                    rows.size() - height);
  const size_t last = final ? rows.size() : std::min(rows.size(), top_ + height);
  std::string out = "\033[?25l\r";
  if (drawn_row_ > 0) out += fmt::format("\033[{}A", drawn_row_);
  out += "\033[J";
  for (size_t r = top_; r < last; ++r) {
    out += rows[r];
    if (r + 1 < last) out += "\r\n";
  }
  const size_t below = final ? 0 : last - 1 - cursor_row;
  if (below > 0) out += fmt::format("\033[{}A", below);
  if (final) {
    out += "\r\n";
  } else {
    out += "\r";
    if (cursor_column > 0) out += fmt::format("\033[{}C", cursor_column);
  }
  put(out + "\033[?25h");
  drawn_row_ = final ? 0 : cursor_row - top_;
}

void LineEditor::recall(size_t index) {
  if (at_ == history_.size()) draft_ = buffer_.text();
  at_ = index;
  buffer_.set(at_ == history_.size() ? draft_ : history_[at_]);
}

Result<LineEditor::Line> LineEditor::edit(std::string_view prompt, std::string_view initial) {
  const RawMode raw;
  buffer_ = {};
  buffer_.set(std::string(initial));
  drawn_row_ = top_ = 0;
  at_ = history_.size();
  put("\033[?2004h");
  const auto finish = [&](End end, std::string text) {
    draw(prompt, true);
    put("\033[?2004l");
    return Line{end, std::move(text)};
  };
  if (interrupted()) return finish(End::interrupt, "");  // it came while the terminal was not raw yet
  for (;;) {
    if (pending_.empty()) draw(prompt, false);  // what is typed faster is drawn at once
    std::string typed;
    ARGENT_LET(const Key key, read_key(typed));
    switch (key) {
      case Key::text:
        buffer_.insert(typed);
        break;
      case Key::newline:
        buffer_.insert("\n");
        break;
      case Key::paste: {
        ARGENT_LET(const std::string pasted, read_paste());
        buffer_.insert(pasted);
        break;
      }
      case Key::enter:
        if (wants_more_lines(buffer_.text())) {
          buffer_.set(buffer_.text() + "\n");
          break;
        }
        return finish(End::line, joined_message(buffer_.text()));
      case Key::left:
        buffer_.left();
        break;
      case Key::right:
        buffer_.right();
        break;
      case Key::word_left:
        buffer_.word_left();
        break;
      case Key::word_right:
        buffer_.word_right();
        break;
      case Key::home:
        buffer_.line_start();
        break;
      case Key::end:
        buffer_.line_end();
        break;
      case Key::up:
        if (!buffer_.up() && at_ > 0) recall(at_ - 1);
        break;
      case Key::down:
        if (!buffer_.down() && at_ < history_.size()) recall(at_ + 1);
        break;
      case Key::backspace:
        buffer_.erase_before();
        break;
      case Key::erase:
        buffer_.erase_after();
        break;
      case Key::kill_word:
        buffer_.kill_word();
        break;
      case Key::kill_start:
        buffer_.kill_to_start();
        break;
      case Key::kill_end:
        buffer_.kill_to_end();
        break;
      case Key::yank:
        buffer_.yank();
        break;
      case Key::redraw:
        put("\033[H\033[2J");
        drawn_row_ = 0;
        break;
      case Key::eof:
        if (buffer_.text().empty()) return finish(End::eof, "");
        buffer_.erase_after();
        break;
      case Key::interrupt:
        return finish(End::interrupt, buffer_.text());
      case Key::closed:
        return finish(End::eof, "");
      case Key::none:
        break;
    }
  }
}

}  // namespace argent::cli
