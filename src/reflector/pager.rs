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
    /// Continue token of the last requested page; `None` for page 1, and if `full` is set.
    pub(super) token: Option<String>,
    /// Set when the whole list is requested again in one page, because a token has expired (P-4).
    full: bool,
    /// The pages received so far, joined into one list with the version of page 1 (P-3).
    list: Option<ListPage>,
}

impl Pager {
    /// Creates a pager that awaits page 1.
    pub(super) fn new(resource_version: ResourceVersion, limit: Option<u32>) -> Self {
        let first = ListRequest { resource_version, limit, continue_token: None };
        Self { first, token: None, full: false, list: None }
    }

    /// Returns the request of the awaited page.
    pub(super) fn request(&self) -> ListRequest {
        match &self.token {
            None => ListRequest { limit: self.first.limit.filter(|_| !self.full), ..self.first.clone() },
            token => ListRequest {
                resource_version: ResourceVersion::unset(),
                limit: self.first.limit,
                continue_token: token.clone(),
            },
        }
    }

    /// Adds one page. Returns the list once it is complete, and `None` if another page must be requested. After an error, no object
    /// of the list is delivered.
    pub(super) fn accept(&mut self, answer: Result<ListPage, Failure>) -> Result<Option<ListPage>, Failure> {
        let mut page = match answer {
            Ok(page) => page,
            Err(failure) => return self.failed(failure).map(|()| None),
        };
        let token = page.continue_token.take().filter(|token| !token.is_empty() && !self.full);
        match &mut self.list {
            None => self.list = Some(page),
            Some(list) => {
                list.items.extend(page.items);
                list.rejected += page.rejected;
            }
        }
        if token.is_none() {
            return Ok(self.list.take());
        }
        if token == self.token {
            return Err(Failure::Undecodable("a page continues with its own continue token".into()));
        }
        self.token = token;
        Ok(None)
    }

    /// Handles a failed page. If the token of a later page has expired, the whole list is requested again, without pages (P-4).
    fn failed(&mut self, failure: Failure) -> Result<(), Failure> {
        let expired = failure.status().is_some_and(|status| status.reason == "Expired");
        if !expired || self.token.is_none() {
            return Err(failure);
        }
        *self = Self { full: true, ..Self::new(self.first.resource_version.clone(), self.first.limit) };
        Ok(())
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

    fn complete(pager: &mut Pager, page: ListPage) -> (Vec<String>, String, u64) {
        let list = pager.accept(Ok(page)).unwrap().expect("a complete list");
        let names = list.items.iter().map(|item| item.name().to_owned()).collect();
        (names, list.resource_version.to_string(), list.rejected)
    }

    fn more(pager: &mut Pager, answer: Result<ListPage, Failure>) -> ListRequest {
        assert!(pager.accept(answer).unwrap().is_none(), "expected another page");
        pager.request()
    }

    /// Rules: P-2, P-3.
    #[test]
    fn later_pages_carry_only_token_and_limit() {
        let mut pager = Pager::new("7".into(), Some(2));
        let second = more(&mut pager, Ok(page("10", &["a", "b"], Some("t1"))));
        assert_eq!(
            second,
            ListRequest { resource_version: "".into(), limit: Some(2), continue_token: Some("t1".into()) }
        );
        more(&mut pager, Ok(page("11", &["c"], Some("t2"))));
        let (names, version, rejected) = complete(&mut pager, page("12", &["d"], None));
        assert_eq!((names.concat().as_str(), version.as_str(), rejected), ("abcd", "10", 3));
        assert!(pager.token.is_some(), "it has several pages");
    }

    /// Rule: P-3.
    #[test]
    fn single_page_is_not_paginated() {
        for token in [None, Some("")] {
            let mut pager = Pager::new("0".into(), Some(500));
            complete(&mut pager, page("10", &["a"], token));
            assert!(pager.token.is_none());
        }
    }

    /// Rule: P-4.
    #[test]
    fn expired_later_page_falls_back_to_full_list() {
        let mut pager = Pager::new("7".into(), Some(2));
        more(&mut pager, Ok(page("10", &["a"], Some("t1"))));
        let full = more(&mut pager, Err(expired()));
        assert_eq!(full, ListRequest { resource_version: "7".into(), limit: None, continue_token: None });
        let (names, version, ..) = complete(&mut pager.clone(), page("20", &["x"], None));
        assert_eq!((names.concat().as_str(), version.as_str()), ("x", "20"));
        let token = pager.clone().accept(Ok(page("20", &["x"], Some("t9"))));
        assert!(token.unwrap().is_some(), "no page follows a full list");
        assert!(pager.accept(Err(expired())).is_err());
    }

    /// Rules: P-4, P-5.
    #[test]
    fn other_page_failures_fail_the_list() {
        let mut pager = Pager::new("7".into(), Some(2));
        assert!(pager.accept(Err(expired())).is_err(), "page 1");
        let gone = Failure::Status(Status { code: 410, reason: "Gone".into(), ..Status::default() });
        for failure in [gone, Failure::Refused, Failure::NotAList("Table".into())] {
            let mut pager = Pager::new("7".into(), Some(2));
            more(&mut pager, Ok(page("10", &["a"], Some("t1"))));
            assert!(pager.accept(Err(failure)).is_err());
        }
    }

    #[test]
    fn repeated_continue_token_fails_the_list() {
        let mut pager = Pager::new("7".into(), Some(2));
        more(&mut pager, Ok(page("10", &["a"], Some("t1"))));
        assert!(pager.accept(Ok(page("10", &["a"], Some("t1")))).is_err());
    }
}
