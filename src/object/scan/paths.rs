//! A tree of many paths, so that one walk handles all of them.

use crate::object::field_path::{FieldPath, PathStep};

/// A tree of [`FieldPath`]s. At every node, a key leads to at most one child: its named child, else the child of `[*]`. Each named
/// child therefore contains a copy of the content of `[*]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathTree {
    /// Indices of the paths that end here.
    ends: Vec<usize>,
    members: Vec<(Box<str>, PathTree)>,
    each: Option<Box<PathTree>>,
}

impl PathTree {
    /// Builds the tree of `paths`. The tree identifies each path by its index.
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

    /// Changes the tree so that no path ends at `path` or at one of its parents. If only `[*]` covers a step of `path`, a copy of
    /// the `[*]` node is first added for this step.
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

    /// Returns the indices of the paths that end here.
    pub(crate) fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// Returns true if any path continues from here.
    pub(crate) fn goes_on(&self) -> bool {
        !self.members.is_empty() || self.each.is_some()
    }

    /// Returns the subtree of the member `key`.
    pub(crate) fn member(&self, key: &[u8]) -> Option<&Self> {
        let named = self.members.iter().find(|(name, _)| name.as_bytes() == key);
        named.map(|(_, below)| below).or(self.each())
    }

    /// Returns the subtree of `[*]`: of every array element, and of every member that has no subtree of its own.
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

    /// Adds the content of `[*]` to every named child.
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
