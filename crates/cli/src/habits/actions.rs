//! The actions of cryptsetup, and our commands for them.

/// An action.
pub(super) struct Action {
    /// Its spellings.
    pub(super) names: &'static [&'static str],
    /// Our command lines: the first that takes all options is told. `$1` is the first argument, and
    /// a part in brackets is left out without its argument.
    pub(super) lines: &'static [&'static str],
    /// A sentence after them, or instead of them.
    pub(super) note: &'static str,
}

/// Shortens the table.
const fn action(
    names: &'static [&'static str],
    lines: &'static [&'static str],
    note: &'static str,
) -> Action {
    Action { names, lines, note }
}

const SERVED: &str = "the disk is then the socket's, not one in /dev/mapper; `blockyard mount` \
                      shows the files in it";
const OF_SERVER: &str = "the socket is that of `blockyard serve --control`";
const NOT_SUPPORTED: &str = "this format is not supported";

pub(super) const ACTIONS: &[Action] = &[
    action(&["open", "luksOpen"], &["serve $1 --socket $2.sock"], SERVED),
    action(&["plainOpen"], &["serve $1 --type plain --socket $2.sock"], SERVED),
    action(&["create"], &["serve $2 --type plain --socket $1.sock"], SERVED),
    action(&["tcryptOpen"], &["serve $1 --type tcrypt --socket $2.sock"], SERVED),
    action(&["bitlkOpen"], &["serve $1 --type bitlk --socket $2.sock"], SERVED),
    action(
        &["loopaesOpen"],
        &[],
        "a volume of loop-AES is opened by its table, with `blockyard serve --table FILE`",
    ),
    action(&["fvault2Open", "fvault2Dump"], &[], NOT_SUPPORTED),
    action(
        &[
            "close",
            "luksClose",
            "remove",
            "plainClose",
            "tcryptClose",
            "bitlkClose",
            "loopaesClose",
        ],
        &[],
        "Ctrl-C or SIGTERM ends a server, and `blockyard umount TARGET` a mount",
    ),
    action(&["luksFormat"], &["format $1 [--key-file $2]"], ""),
    action(&["luksAddKey"], &["key add $1 [--new-keyfile $2]"], ""),
    action(&["luksRemoveKey"], &["key remove $1 [--key-file $2]"], ""),
    action(&["luksChangeKey"], &["key change $1 [--new-keyfile $2]"], ""),
    action(&["luksKillSlot"], &["key kill $1 $2"], ""),
    action(&["luksConvertKey"], &["key convert $1"], ""),
    action(&["luksDump", "bitlkDump"], &["info $1"], ""),
    action(&["tcryptDump"], &["table $1 --type tcrypt"], ""),
    action(&["isLuks"], &["info $1"], "exit code 4 means that there is no header"),
    action(&["luksUUID"], &["info $1", "header uuid $1"], ""),
    action(&["luksErase"], &["erase $1"], ""),
    action(&["luksHeaderBackup"], &["header backup $1"], ""),
    action(&["luksHeaderRestore"], &["header restore $1"], ""),
    action(&["luksSuspend"], &["suspend $1.ctl"], OF_SERVER),
    action(&["luksResume"], &["resume $1.ctl"], OF_SERVER),
    action(&["config"], &["header label $1", "key priority $1"], ""),
    action(&["convert"], &["header convert $1"], ""),
    action(
        &["reencrypt", "luksReencrypt"],
        &[],
        "the volume key of a volume is not changed in place; `cryptsetup reencrypt` does it, while \
         no server has the volume open",
    ),
    action(
        &["token add"],
        &["token import $1"],
        "the JSON of a token for the kernel's keyring is in docs/cli/token.md",
    ),
    action(&["benchmark"], &[], "`blockyard bench VOLUME` measures a volume with its cipher"),
    action(
        &["refresh"],
        &[],
        "a server keeps its options; `blockyard reload SOCKET` lets it read its configuration \
         again",
    ),
];

impl Action {
    /// Whether it opens volumes of TrueCrypt and VeraCrypt only.
    pub(super) fn is_tcrypt(&self) -> bool {
        self.lines.iter().any(|line| line.contains("--type tcrypt"))
    }

    /// The action that the positional arguments begin with, its name, and the other arguments.
    pub(super) fn of<'a>(words: &'a [&'a str]) -> Option<(String, &'static Self, &'a [&'a str])> {
        let of_length = |count: usize| {
            let name = words.get(..count)?.join(" ");
            let action = ACTIONS.iter().find(|action| action.names.contains(&name.as_str()))?;
            Some((name, action, &words[count..]))
        };
        of_length(2).or_else(|| of_length(1))
    }
}

/// Number of the words that name the command of a line.
pub(super) fn words_of_command(line: &str) -> usize {
    line.split_whitespace().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase())).count()
}

/// The words of a line with these arguments; `None` if it needs fewer or more.
pub(super) fn filled(line: &str, arguments: &[&str]) -> Option<Vec<String>> {
    let (required, optional) = line.split_once('[').unwrap_or((line, ""));
    let count = |text: &str| if text.contains("$2") { 2 } else { usize::from(text.contains("$1")) };
    let most = count(line);
    if !(count(required)..=most).contains(&arguments.len()) {
        return None;
    }
    let is_given = count(optional) == 2 && arguments.len() == 2;
    let optional = if is_given { optional.trim_end_matches(']') } else { "" };
    let argument = |index: usize| arguments.get(index).copied().unwrap_or("");
    let words = required.split_whitespace().chain(optional.split_whitespace());
    Some(words.map(|word| word.replace("$1", argument(0)).replace("$2", argument(1))).collect())
}
