//! `blockyard complete -- WORD...`: the answer to Tab in a shell, for the scripts of `completions`.
//!
//! The first line of the answer is the kind of the files that fit too: `none`, `files`, `dirs` or
//! `commands`. The shell lists these itself, with its quotes and `~`. Each further line is a whole
//! word, and a tab and its description.
//!
//! `clap_complete` has an engine for this, which is unstable. It lists files without a shell's
//! quotes, mixes options into the files, and gives a value no view of the other words.

mod values;

use std::fmt::Write as _;

use clap::{Arg, Args, Command, ValueHint};

use self::values::Words;
use crate::args::definition;
use crate::failure::Failure;
use crate::output::print;

/// Complete the last of the words; for the scripts of `completions`
#[derive(Args, Debug)]
pub(crate) struct CompleteArgs {
    /// The words after `blockyard`, up to the cursor
    #[arg(value_name = "WORD", last = true)]
    words: Vec<String>,
}

/// Prints the answer.
pub(crate) fn run(args: &CompleteArgs) -> Result<(), Failure> {
    let mut definition = definition();
    definition.build();
    let (last, before) =
        args.words.split_last().map_or(("", &[][..]), |(last, words)| (last.as_str(), words));
    let answer = Line::read(&definition, before).answer(last);
    let mut text = format!("{}\n", answer.files.unwrap_or("none"));
    for Candidate { word, about } in answer.candidates {
        let about = about.lines().next().unwrap_or_default().replace('\t', " ");
        // A name with a newline is no line of this answer.
        if !word.contains(char::is_control) {
            let _ = writeln!(text, "{word}\t{about}");
        }
    }
    print(&text)
}

/// A word that fits, and its description.
#[derive(Debug)]
struct Candidate {
    word: String,
    about: String,
}

impl Candidate {
    fn new(word: impl Into<String>, about: impl Into<String>) -> Self {
        Self { word: word.into(), about: about.into() }
    }
}

/// Words that fit, and the kind of files.
#[derive(Debug, Default)]
struct Answer {
    files: Option<&'static str>,
    candidates: Vec<Candidate>,
}

/// The words before the cursor.
struct Line<'a> {
    command: &'a Command,
    /// An option that waits for its value.
    waiting: Option<&'a Arg>,
    /// `--` was read.
    is_escaped: bool,
    words: Words<'a>,
}

impl<'a> Line<'a> {
    fn read(definition: &'a Command, words: &'a [String]) -> Self {
        let mut line =
            Self { command: definition, waiting: None, is_escaped: false, words: Words::default() };
        words.iter().for_each(|word| line.push(word));
        line
    }

    fn push(&mut self, word: &'a str) {
        if let Some(option) = self.waiting.take() {
            self.words.add(option, word);
        } else if self.is_escaped {
            self.words.positionals.push(word);
        } else if word == "--" {
            self.is_escaped = true;
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let option = self.long(name).filter(|option| takes_value(option));
            match (option, value) {
                (Some(option), Some(value)) => self.words.add(option, value),
                (option, None) => self.waiting = option.filter(|option| needs_value(option)),
                (None, Some(_)) => {}
            }
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            self.push_letters(letters);
        } else if let Some(below) = self.command.find_subcommand(word) {
            self.command = below;
            self.words = Words::default();
        } else {
            self.words.positionals.push(word);
        }
    }

    /// Reads options of one letter each; the first one with a value takes the rest.
    fn push_letters(&mut self, letters: &'a str) {
        for (at, letter) in letters.char_indices() {
            let has_letter = |option: &&&'a Arg| {
                option.get_short_and_visible_aliases().is_some_and(|all| all.contains(&letter))
            };
            let options: Vec<_> = self.command.get_arguments().collect();
            let Some(&option) = options.iter().find(has_letter) else { continue };
            if takes_value(option) {
                match &letters[at + letter.len_utf8()..] {
                    "" => self.waiting = Some(option),
                    value => self.words.add(option, value.trim_start_matches('=')),
                }
                return;
            }
        }
    }

    /// The option with this name or alias.
    fn long(&self, name: &str) -> Option<&'a Arg> {
        self.command.get_arguments().find(|option| {
            let aliases = option.get_all_aliases().unwrap_or_default();
            option.get_long() == Some(name) || aliases.contains(&name)
        })
    }

    /// Words that fit for the word at the cursor.
    fn answer(&self, word: &str) -> Answer {
        if let Some(option) = self.waiting {
            return self.values(option, "", word);
        }
        if let Some((name, value)) = word.strip_prefix("--").and_then(|long| long.split_once('='))
            && !self.is_escaped
        {
            let option = self.long(name).filter(|option| takes_value(option));
            let prefix = &word[..word.len() - value.len()];
            return option
                .map_or_else(Answer::default, |option| self.values(option, prefix, value));
        }
        if word.starts_with('-') && !self.is_escaped {
            return Answer { files: None, candidates: self.options(word) };
        }
        let below = self.command.get_subcommands().filter(|below| !below.is_hide_set());
        let below = below.filter(|below| below.get_name().starts_with(word) && !self.is_escaped);
        let below = below.map(|below| Candidate::new(below.get_name(), about(below.get_about())));
        let mut answer = self
            .positional()
            .map_or_else(Answer::default, |argument| self.values(argument, "", word));
        answer.candidates.splice(0..0, below);
        answer
    }

    /// The argument at this place; the last one of a command may be a list.
    fn positional(&self) -> Option<&'a Arg> {
        let is_list =
            |argument: &&Arg| argument.get_num_args().is_some_and(|count| count.max_values() > 1);
        let all = || self.command.get_positionals();
        if self.is_escaped {
            return all().find(|argument| argument.is_last_set());
        }
        let mut plain = all().filter(|argument| !argument.is_last_set());
        let place = self.words.positionals.len();
        plain
            .nth(place)
            .or_else(|| all().filter(|argument| !argument.is_last_set()).last().filter(is_list))
    }

    fn options(&self, word: &str) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for option in self.command.get_arguments().filter(|option| !option.is_hide_set()) {
            let longs = option.get_long_and_visible_aliases().unwrap_or_default();
            let shorts = option.get_short_and_visible_aliases().unwrap_or_default();
            let longs = longs.iter().map(|long| format!("--{long}"));
            let spellings = longs.chain(shorts.iter().map(|short| format!("-{short}")));
            let fitting = spellings.filter(|spelling| spelling.starts_with(word));
            candidates.extend(fitting.map(|word| Candidate::new(word, about(option.get_help()))));
        }
        candidates
    }

    /// Values of an argument that begin with `value`, behind a prefix.
    fn values(&self, argument: &Arg, prefix: &str, value: &str) -> Answer {
        let mut answer = self.words.values(self.command, argument, value);
        answer.candidates.retain(|candidate| candidate.word.starts_with(value));
        for candidate in &mut answer.candidates {
            candidate.word.insert_str(0, prefix);
        }
        answer
    }
}

fn about(help: Option<&clap::builder::StyledStr>) -> String {
    help.map(ToString::to_string).unwrap_or_default()
}

fn takes_value(option: &Arg) -> bool {
    option.get_num_args().is_some_and(|count| count.takes_values())
}

/// Whether the next word is the value.
fn needs_value(option: &Arg) -> bool {
    !option.is_require_equals_set()
        && option.get_num_args().is_some_and(|count| count.min_values() > 0)
}

/// The kind of files that an argument names.
fn files(argument: &Arg) -> Option<&'static str> {
    match argument.get_value_hint() {
        ValueHint::FilePath | ValueHint::AnyPath | ValueHint::ExecutablePath => Some("files"),
        ValueHint::DirPath => Some("dirs"),
        ValueHint::CommandString | ValueHint::CommandName => Some("commands"),
        _ => None,
    }
}
