//! One list, page by page (P-1 … P-5).

use crate::{
    list_watch::{Failure, ListPage, ListRequest},
    object::ResourceVersion,
};

/// A list in progress.
///
/// **Invariant:** no object is returned before the last page, so a list that fails half-way has no effect (P-5).
#[derive(Clone, Debug)]
pub(super) struct Pager {
    /// Request of page 1.
    pub(super) first: ListRequest,
    /// Token of the last requested page; `None` for page 1 and for the full list of P-4.
    pub(super) token: Option<String>,
    /// Set when the awaited page is the full list of P-4: no page follows it.
    full: bool,
    /// The pages so far, as one, with the version of page 1 (P-3).
    list: Option<ListPage>,
}

/// Result of a page.
#[derive(Debug)]
pub(super) enum Paged {
    /// Request of the next page.
    More(ListRequest),
    /// The list is complete.
    Complete(ListPage),
    /// The list failed; none of it is delivered.
    Failed(Failure),
}

impl Pager {
    /// Creates a pager; [`Pager::request`] returns its first request.
    pub(super) fn new(resource_version: ResourceVersion, limit: Option<u32>) -> Self {
        let first = ListRequest { resource_version, limit, continue_token: None };
        Self { first, token: None, full: false, list: None }
    }

    /// Returns the request of page 1, or of the full list.
    pub(super) fn request(&self) -> ListRequest {
        ListRequest { limit: self.first.limit.filter(|_| !self.full), ..self.first.clone() }
    }

    /// Handles one answer.
    pub(super) fn accept(&mut self, answer: Result<ListPage, Failure>) -> Paged {
        let mut page = match answer {
            Ok(page) => page,
            Err(failure) => return self.failed(failure),
        };
        let token = page.continue_token.take().filter(|token| !token.is_empty() && !self.full);
        match &mut self.list {
            None => self.list = Some(page),
            Some(list) => {
                list.items.extend(page.items);
                list.rejected += page.rejected;
            }
        }
        match token {
            None => Paged::Complete(self.list.take().unwrap_or_default()),
            token if token == self.token => {
                Paged::Failed(Failure::Undecodable("a page continues with its own continue token".into()))
            }
            token => {
                self.token.clone_from(&token);
                let limit = self.first.limit;
                Paged::More(ListRequest { resource_version: ResourceVersion::unset(), limit, continue_token: token })
            }
        }
    }

    /// Handles a failed page. If the token of a later page has expired, the whole list is requested again, without pages (P-4).
    fn failed(&mut self, failure: Failure) -> Paged {
        let expired = failure.status().is_some_and(|status| status.reason == "Expired");
        if !expired || self.token.is_none() {
            return Paged::Failed(failure);
        }
        *self = Self { full: true, ..Self::new(self.first.resource_version.clone(), self.first.limit) };
        Paged::More(self.request())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        list_watch::Status,
        testing::{expired, object},
    };

    fn page(version: &str, names: &[&str], token: Option<&str>) -> ListPage {
        ListPage {
            resource_version: version.into(),
            continue_token: token.map(Into::into),
            items: names.iter().map(|name| object(name, "1")).collect(),
            rejected: 1,
        }
    }

    fn complete(paged: Paged) -> (Vec<String>, String, u64) {
        let Paged::Complete(list) = paged else { panic!("expected a complete list, got {paged:?}") };
        let names = list.items.iter().map(|item| item.name().to_owned()).collect();
        (names, list.resource_version.to_string(), list.rejected)
    }

    fn more(paged: Paged) -> ListRequest {
        let Paged::More(request) = paged else { panic!("expected another page, got {paged:?}") };
        request
    }

    /// Rules: P-2, P-3.
    #[test]
    fn later_pages_carry_only_token_and_limit() {
        let mut pager = Pager::new("7".into(), Some(2));
        let second = more(pager.accept(Ok(page("10", &["a", "b"], Some("t1")))));
        assert_eq!(
            second,
            ListRequest { resource_version: "".into(), limit: Some(2), continue_token: Some("t1".into()) }
        );
        more(pager.accept(Ok(page("11", &["c"], Some("t2")))));
        let (names, version, rejected) = complete(pager.accept(Ok(page("12", &["d"], None))));
        assert_eq!((names.concat().as_str(), version.as_str(), rejected), ("abcd", "10", 3));
        assert!(pager.token.is_some(), "it has several pages");
    }

    /// Rule: P-3.
    #[test]
    fn single_page_is_not_paginated() {
        for token in [None, Some("")] {
            let mut pager = Pager::new("0".into(), Some(500));
            complete(pager.accept(Ok(page("10", &["a"], token))));
            assert!(pager.token.is_none());
        }
    }

    /// Rule: P-4.
    #[test]
    fn expired_later_page_falls_back_to_full_list() {
        let mut pager = Pager::new("7".into(), Some(2));
        more(pager.accept(Ok(page("10", &["a"], Some("t1")))));
        let full = more(pager.accept(Err(expired())));
        assert_eq!(full, ListRequest { resource_version: "7".into(), limit: None, continue_token: None });
        let (names, version, ..) = complete(pager.clone().accept(Ok(page("20", &["x"], None))));
        assert_eq!((names.concat().as_str(), version.as_str()), ("x", "20"));
        let token = pager.clone().accept(Ok(page("20", &["x"], Some("t9"))));
        assert!(matches!(token, Paged::Complete(_)), "no page follows a full list");
        assert!(matches!(pager.accept(Err(expired())), Paged::Failed(_)));
    }

    /// Rules: P-4, P-5.
    #[test]
    fn other_page_failures_fail_the_list() {
        let mut pager = Pager::new("7".into(), Some(2));
        assert!(matches!(pager.accept(Err(expired())), Paged::Failed(_)), "page 1");
        let gone = Failure::Status(Status { code: 410, reason: "Gone".into(), ..Status::default() });
        for failure in [gone, Failure::Refused, Failure::NotAList("Table".into())] {
            let mut pager = Pager::new("7".into(), Some(2));
            more(pager.accept(Ok(page("10", &["a"], Some("t1")))));
            assert!(matches!(pager.accept(Err(failure)), Paged::Failed(_)));
        }
    }

    #[test]
    fn repeated_continue_token_fails_the_list() {
        let mut pager = Pager::new("7".into(), Some(2));
        more(pager.accept(Ok(page("10", &["a"], Some("t1")))));
        assert!(matches!(pager.accept(Ok(page("10", &["a"], Some("t1")))), Paged::Failed(_)));
    }
}
