//! JSON of the commands.

use serde::{Serialize, Serializer};

/// Indented text, with a newline at its end.
pub(crate) fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("all keys are strings") + "\n"
}

/// One line.
pub(crate) fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("all keys are strings") + "\n"
}

/// An object whose names are data, in this order.
#[derive(Clone, Debug)]
pub(crate) struct Members<K, V>(Vec<(K, V)>);

impl<K, V> Members<K, V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K, V> Default for Members<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The first of neighbours with one name is kept: a percentile may be listed twice.
impl<K: PartialEq, V> FromIterator<(K, V)> for Members<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(members: I) -> Self {
        let mut members: Vec<(K, V)> = members.into_iter().collect();
        members.dedup_by(|later, earlier| later.0 == earlier.0);
        Self(members)
    }
}

impl<K: Serialize, V: Serialize> Serialize for Members<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order_and_no_name_is_repeated() {
        let members: Members<_, _> = [("p99", 2), ("p50", 1), ("p50", 1)].into_iter().collect();
        assert_eq!(line(&members), "{\"p99\":2,\"p50\":1}\n");
    }
}
