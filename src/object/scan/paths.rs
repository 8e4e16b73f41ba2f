//! Many paths as one tree, so that one walk serves them all.

use crate::object::field_path::{FieldPath, PathStep};

/// A tree of [`FieldPath`]s. At every node one key leads to at most one child: what `[*]` says is also part of every
/// named child.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathTree {
    /// Which paths end here.
    ends: Vec<usize>,
    members: Vec<(Box<str>, PathTree)>,
    each: Option<Box<PathTree>>,
}

impl PathTree {
    /// Makes the tree of `paths`, which are known by their position.
    pub(crate) fn new(paths: &[FieldPath]) -> Self {
        let mut tree = Self::default();
        for (index, path) in paths.iter().enumerate() {
            let mut node = &mut tree;
            for step in path.steps() {
                node = match step {
                    PathStep::Member(name) => node.member_mut(name),
                    PathStep::Each => node.each.get_or_insert_default(),
                };
            }
            node.ends.push(index);
        }
        tree.spread();
        tree
    }

    /// Takes `path` out of what ends here, and makes it a child of its own if only `[*]` leads to it.
    pub(crate) fn spare(&mut self, path: &[&str]) {
        let Some((name, rest)) = path.split_first() else {
            self.ends.clear();
            return;
        };
        if !self.members.iter().any(|(member, _)| **member == **name) {
            let Some(each) = &self.each else { return };
            let copy = (**each).clone();
            self.members.push(((*name).into(), copy));
        }
        let child = self.member_mut(name);
        child.ends.clear();
        child.spare(rest);
    }

    /// Returns which paths end here.
    pub(crate) fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// Returns whether any path goes on from here.
    pub(crate) fn goes_on(&self) -> bool {
        !self.members.is_empty() || self.each.is_some()
    }

    /// Returns what belongs to the member `key`, and the member's position if it is named.
    pub(crate) fn member(&self, key: &[u8]) -> Option<(Option<usize>, &Self)> {
        match self.members.iter().position(|(name, _)| name.as_bytes() == key) {
            Some(index) => Some((Some(index), &self.members[index].1)),
            None => Some((None, self.each()?)),
        }
    }

    /// Returns what belongs to every element of an array.
    pub(crate) fn each(&self) -> Option<&Self> {
        self.each.as_deref()
    }

    fn member_mut(&mut self, name: &str) -> &mut Self {
        let index = self.members.iter().position(|(member, _)| **member == *name).unwrap_or_else(|| {
            self.members.push((name.into(), Self::default()));
            self.members.len() - 1
        });
        &mut self.members[index].1
    }

    /// Adds to every named child what `[*]` says of it.
    fn spread(&mut self) {
        if let Some(each) = &self.each {
            for (_, child) in &mut self.members {
                child.merge(each);
            }
        }
        for (_, child) in &mut self.members {
            child.spread();
        }
        if let Some(each) = &mut self.each {
            each.spread();
        }
    }

    fn merge(&mut self, other: &Self) {
        self.ends.extend(&other.ends);
        for (name, child) in &other.members {
            self.member_mut(name).merge(child);
        }
        if let Some(each) = &other.each {
            self.each.get_or_insert_default().merge(each);
        }
    }
}
