//! The steps of a path, with those of the links on the way.

use std::collections::VecDeque;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Limit of symbolic links in a path: the kernel's.
const LINKS_MAX: usize = 40;

/// Passes each step to `find`, without links in it, until `find` has found something. A step is
/// looked at after `find` has seen it: it may lie where nothing may be touched. Steps that do not
/// exist follow too.
pub(super) fn find_step<T>(path: &Path, mut find: impl FnMut(&Path) -> Option<T>) -> Option<T> {
    let absolute = std::path::absolute(path).ok()?;
    let steps = |path: &Path| -> Vec<PathBuf> {
        path.components().map(|step| PathBuf::from(step.as_os_str())).collect()
    };
    let mut left: VecDeque<PathBuf> = steps(&absolute).into();
    let mut at = PathBuf::new();
    let mut links = 0;
    while let Some(step) = left.pop_front() {
        if step.components().next() == Some(Component::ParentDir) {
            at.pop();
            continue;
        }
        at.push(step);
        if let Some(found) = find(&at) {
            return Some(found);
        }
        if let Ok(to) = fs::read_link(&at) {
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            at.pop();
            steps(&to).into_iter().rev().for_each(|step| left.push_front(step));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_path_are_those_of_its_links_too() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("far/bin")).unwrap();
        std::os::unix::fs::symlink("far/bin", root.join("bin")).unwrap();
        std::os::unix::fs::symlink("../../second", root.join("far/bin/first")).unwrap();
        std::os::unix::fs::symlink("third", root.join("second")).unwrap();
        let mut seen = Vec::new();
        let none = find_step(&root.join("bin/first"), |step| {
            seen.extend(step.strip_prefix(&root).ok().map(Path::to_owned));
            None::<()>
        });
        assert_eq!(none, None);
        let all = ["", "bin", "far", "far/bin", "far/bin/first", "second", "third"];
        assert_eq!(seen, all.map(PathBuf::from));
        let missing = root.join("none/of/these");
        let found = find_step(&missing, |step| (step == missing).then_some(()));
        assert_eq!(found, Some(()));
    }
}
