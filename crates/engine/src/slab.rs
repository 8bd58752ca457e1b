//! Numbered entries for I/Os in flight: the index serves as a token; a freed entry is reused first.
//!
//! After the first rounds nothing is allocated: the vector has grown to the depth of the queue.

use alloc::vec::Vec;

/// Values at stable indices.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Inserts a value and returns its index.
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.places[index as usize] = Some(value);
            return index;
        }
        let index = u32::try_from(self.places.len()).expect("fewer than 2^32 I/Os are in flight");
        self.places.push(Some(value));
        index
    }

    /// The mutable value at `index`.
    ///
    /// # Panics
    /// When the entry is free: a completion came twice.
    pub fn at(&mut self, index: u32) -> &mut T {
        self.places[index as usize].as_mut().expect("the place is taken until its completion")
    }

    /// The value at `index`.
    ///
    /// # Panics
    /// When the entry is free.
    #[must_use]
    pub fn get(&self, index: u32) -> &T {
        self.places[index as usize].as_ref().expect("the place is taken until its completion")
    }

    /// All values with their indices, in the order of their indices.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0..).zip(&mut self.places).filter_map(|(index, place)| Some((index, place.as_mut()?)))
    }

    /// Removes the value and frees its entry.
    ///
    /// # Panics
    /// When the entry is free: a completion came twice.
    pub fn remove(&mut self, index: u32) -> T {
        let value = self.places[index as usize].take();
        self.free.push(index);
        value.expect("the place is taken until its completion")
    }

    /// Removes all values, in the order of their indices.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        self.places.drain(..).flatten()
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_place_is_used_again_before_a_new_one() {
        let mut slab = Slab::default();
        let first = slab.insert('a');
        let second = slab.insert('b');
        assert_eq!(slab.remove(first), 'a');
        assert_eq!(slab.insert('c'), first);
        assert_eq!((*slab.at(first), *slab.at(second), slab.len()), ('c', 'b', 2));
    }

    #[test]
    #[should_panic(expected = "until its completion")]
    fn removing_twice_is_a_programmer_error() {
        let mut slab = Slab::default();
        let index = slab.insert(());
        slab.remove(index);
        slab.remove(index);
    }
}
