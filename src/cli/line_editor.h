// Reads one message at a terminal: UTF-8, several lines, history, the keys that shells have. Where stdin is no
// terminal, or one without cursor movement, it reads plain lines.
//
// A line that ends with a backslash goes on in the next one; a line that begins with """ opens a block that runs up to
// the next """, line breaks included; Alt-Enter breaks a line, and what is pasted keeps its line breaks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace argent::cli {

// The text of one message while it is edited: UTF-8 and a cursor between characters. No terminal in here.
class EditBuffer {
 public:
  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // in bytes
  void set(std::string text) { text_ = std::move(text), cursor_ = text_.size(); }
  void insert(std::string_view text);

  void left() { cursor_ = before(cursor_); }
  void right() { cursor_ = after(cursor_); }
  void word_left() { cursor_ = word_before(cursor_); }
  void word_right();
  void line_start();
  void line_end();
  bool up();    // to the line above; false on the first
  bool down();  // false on the last
  void erase_before();
  void erase_after();
  void kill_word();      // Ctrl-W: the word before the cursor
  void kill_to_start();  // Ctrl-U: of the line
  void kill_to_end();    // Ctrl-K: of the line
  void yank() { insert(killed_); }

 private:
  size_t before(size_t at) const;
  size_t after(size_t at) const;
  size_t word_before(size_t at) const;
  size_t start_of_line(size_t at) const;
  size_t end_of_line(size_t at) const;
  void kill(size_t begin, size_t end);

  std::string text_, killed_;
  size_t cursor_ = 0;
};

// Columns of a terminal that UTF-8 text takes: 2 for wide characters, 0 for combining ones.
size_t display_width(std::string_view text);

// Is the message still open: a backslash at its end, or a """ block without its end?
bool wants_more_lines(std::string_view text);
// The message that was meant: backslashes before line breaks and """ marks removed.
std::string joined_message(std::string_view text);

class LineEditor {
 public:
  // History is kept in `history_file`, where that is not empty: the last kHistory messages, readable by the user only.
  explicit LineEditor(std::string history_file);

  enum class End { line, eof, interrupt };
  struct Line {
    End end = End::line;
    std::string text;
  };
  // The next message. `initial` is there to be edited. io: stdin cannot be read.
  Result<Line> read(std::string_view prompt, std::string_view initial = "");
  void remember(const std::string& text);
  bool interactive() const { return interactive_; }

  static constexpr size_t kHistory = 1000;

 private:
  enum class Key;
  Result<Line> read_plain();
  Result<Line> edit(std::string_view prompt, std::string_view initial);
  Result<bool> read_byte(char& byte, int timeout_ms);
  Result<Key> read_key(std::string& text);
  Result<Key> read_escape();
  Result<std::string> read_paste();
  void draw(std::string_view prompt, bool final);
  void recall(size_t index);

  std::string history_file_;
  std::vector<std::string> history_;
  bool interactive_ = false;
  std::string pending_;  // bytes read from stdin and not used yet
  EditBuffer buffer_;
  size_t drawn_row_ = 0;  // of the cursor, below the first row drawn
  size_t top_ = 0;        // first row shown when the message has more rows than the terminal
  size_t at_ = 0;         // place in the history; its size is the message being written
  std::string draft_;
};

}  // namespace argent::cli
