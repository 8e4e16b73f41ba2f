//! What an expression reads of its variables, so that no more of an object is decoded than that.

use cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators},
};

/// Which part of a value is read.
///
/// Of any value it is read whether it is there and of what type it is, and a scalar is read as a whole. What is said of
/// members counts if it is an object, and what is said of elements if it is a list: it may be either.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// All of it, whatever the others say.
    whole: bool,
    /// Members, and what is read of each.
    members: Vec<(Box<str>, Part)>,
    /// The keys of all members.
    keys: bool,
    /// How many elements there are, and this of each.
    elements: Option<Box<Part>>,
}

impl Part {
    /// Returns whether all of it is read.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Returns of how many members more than the key is read.
    pub(super) fn members(&self) -> usize {
        self.members.len()
    }

    /// Returns which part of a member is read; `None` where nothing is, but perhaps its key.
    pub(super) fn member(&self, key: &[u8]) -> Option<&Self> {
        self.members.iter().find(|(name, _)| name.as_bytes() == key).map(|(_, part)| part)
    }

    /// Returns whether the keys of all members are read.
    pub(super) fn has_keys(&self) -> bool {
        self.keys
    }

    /// Returns which part of each element is read; `None` where not even their number is.
    pub(super) fn elements(&self) -> Option<&Self> {
        self.elements.as_deref()
    }

    fn at(&mut self, path: &[Step<'_>]) -> &mut Self {
        let Some((step, rest)) = path.split_first() else { return self };
        let below = match *step {
            Step::Element => &mut **self.elements.get_or_insert_default(),
            Step::Member(name) => {
                let index = self.members.iter().position(|(member, _)| **member == *name).unwrap_or_else(|| {
                    self.members.push((name.into(), Self::default()));
                    self.members.len() - 1
                });
                &mut self.members[index].1
            }
        };
        below.at(rest)
    }
}

/// What an expression reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reads {
    /// Of `object`.
    pub(super) object: Part,
    /// Of `old`.
    pub(super) old: Part,
}

impl Reads {
    pub(super) fn of(expression: &IdedExpr) -> Self {
        let mut reader = Reader::default();
        reader.used(expression);
        reader.reads
    }

    /// Returns that all is read.
    #[cfg(test)]
    pub(super) fn all() -> Self {
        let all = || Part { whole: true, ..Part::default() };
        Self { object: all(), old: all() }
    }
}

/// Where a value is, or one of several of which the same is read.
#[derive(Clone, Debug)]
struct Place<'a> {
    root: Root,
    path: Vec<Step<'a>>,
}

#[derive(Clone, Copy, Debug)]
enum Root {
    Object,
    Old,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    /// A member of this name.
    Member(&'a str),
    /// Any of the elements.
    Element,
}

impl<'a> Place<'a> {
    fn then(mut self, step: Step<'a>) -> Self {
        self.path.push(step);
        self
    }
}

/// Follows values from the variables to where they are used. One that goes where it is not followed is read as a whole.
#[derive(Default)]
struct Reader<'a> {
    reads: Reads,
    /// Names that enclosing macros bind, and to what; `None` is a value that was used where it was made.
    bound: Vec<(&'a str, Option<Place<'a>>)>,
}

impl<'a> Reader<'a> {
    /// Notes what is read where the value of an expression may be used in any way.
    fn used(&mut self, expression: &'a IdedExpr) {
        if let Some(place) = self.place(expression) {
            self.part(&place).whole = true;
            return;
        }
        match &expression.expr {
            Expr::Select(select) if select.test => match self.place(&select.operand) {
                Some(place) => {
                    self.part(&place.then(Step::Member(&select.field)));
                }
                None => self.used(&select.operand),
            },
            Expr::Call(call) => self.call(expression, call),
            Expr::Comprehension(all) => {
                let element = if all.iter_var2.is_some() {
                    self.used(&all.iter_range);
                    None
                } else {
                    self.gone_over(&all.iter_range)
                };
                self.used(&all.accu_init);
                self.within(all, element, &[&all.loop_cond, &all.loop_step, &all.result]);
            }
            _ => self.children_used(expression),
        }
    }

    fn call(&mut self, expression: &'a IdedExpr, call: &'a CallExpr) {
        match (call.func_name.as_str(), call.target.as_deref(), call.args.as_slice()) {
            ("size", Some(measured), []) | ("size", None, [measured]) => {
                self.gone_over(measured);
            }
            (operators::IN, None, [sought, range]) => {
                self.used(sought);
                let Some(place) = self.place(range) else { return self.used(range) };
                let part = self.part(&place);
                match text(sought) {
                    Some(key) => {
                        part.at(&[Step::Member(key)]);
                    }
                    None => part.keys = true,
                }
                part.at(&[Step::Element]).whole = true;
            }
            _ => self.children_used(expression),
        }
    }

    fn children_used(&mut self, expression: &'a IdedExpr) {
        for child in children(expression) {
            self.used(child);
        }
    }

    /// Notes that a value is gone over, or counted; returns where its elements are.
    fn gone_over(&mut self, range: &'a IdedExpr) -> Option<Place<'a>> {
        let place = self.place(range);
        if place.is_none() {
            self.used(range);
        }
        place.map(|place| self.each(&place))
    }

    /// Notes that the elements or keys of a value are read one by one; returns where the elements are.
    fn each(&mut self, range: &Place<'a>) -> Place<'a> {
        let part = self.part(range);
        part.keys = true;
        part.at(&[Step::Element]);
        range.clone().then(Step::Element)
    }

    /// Notes what the inner expressions of a macro read.
    fn within(&mut self, all: &'a ComprehensionExpr, element: Option<Place<'a>>, inner: &[&'a IdedExpr]) {
        let outside = self.bound.len();
        self.bound.extend(all.iter_var2.as_deref().map(|name| (name, None)));
        self.bound.extend([(all.accu_var.as_str(), None), (all.iter_var.as_str(), element)]);
        for inner in inner {
            self.used(inner);
        }
        self.bound.truncate(outside);
    }

    /// Returns where the value of an expression is; `None` where it is not simply a part of a variable.
    fn place(&mut self, expression: &'a IdedExpr) -> Option<Place<'a>> {
        match &expression.expr {
            Expr::Ident(name) => self.named(name),
            Expr::Select(select) if !select.test => {
                Some(self.place(&select.operand)?.then(Step::Member(&select.field)))
            }
            Expr::Call(call) if call.func_name == operators::INDEX => {
                let [operand, index] = call.args.as_slice() else { return None };
                let step = match &index.expr {
                    Expr::Literal(LiteralValue::Int(_) | LiteralValue::UInt(_)) => Step::Element,
                    _ => Step::Member(text(index)?),
                };
                Some(self.place(operand)?.then(step))
            }
            // what is left of a list is read where the list is; what is left of an object are keys, all of which are read
            Expr::Comprehension(all) => {
                let condition = filter_condition(all)?;
                let range = self.place(&all.iter_range)?;
                let element = self.each(&range);
                self.within(all, Some(element), &[condition]);
                Some(range)
            }
            _ => None,
        }
    }

    /// Returns what a name means: in the innermost macro that binds it, or outside of all.
    fn named(&self, name: &str) -> Option<Place<'a>> {
        if let Some((_, bound)) = self.bound.iter().rev().find(|(bound, _)| *bound == name) {
            return bound.clone();
        }
        let root = match name.trim_start_matches('.') {
            "object" => Root::Object,
            "old" => Root::Old,
            _ => return None,
        };
        Some(Place { root, path: Vec::new() })
    }

    fn part(&mut self, place: &Place<'_>) -> &mut Part {
        let root = match place.root {
            Root::Object => &mut self.reads.object,
            Root::Old => &mut self.reads.old,
        };
        root.at(&place.path)
    }
}

/// Returns a text that is written out.
pub(super) fn text(expression: &IdedExpr) -> Option<&str> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Returns the condition of a macro that is a `filter`: it makes a list of those elements that meet it.
fn filter_condition(all: &ComprehensionExpr) -> Option<&IdedExpr> {
    let is = |expression: &IdedExpr, name: &str| matches!(&expression.expr, Expr::Ident(it) if it == name);
    let is_made = |expression: &IdedExpr| is(expression, &all.accu_var);
    let [condition, longer, same] = arguments(&all.loop_step, operators::CONDITIONAL)? else { return None };
    let [made, more] = arguments(longer, operators::ADD)? else { return None };
    let [one] = list(more)? else { return None };
    let is_filter = list(&all.accu_init)?.is_empty()
        && matches!(all.loop_cond.expr, Expr::Literal(_))
        && [made, same, &all.result].into_iter().all(is_made)
        && is(one, &all.iter_var)
        && all.iter_var != all.accu_var
        && all.iter_var2.is_none();
    is_filter.then_some(condition)
}

fn arguments<'a>(expression: &'a IdedExpr, function: &str) -> Option<&'a [IdedExpr]> {
    match &expression.expr {
        Expr::Call(call) if call.func_name == function && call.target.is_none() => Some(&call.args),
        _ => None,
    }
}

fn list(expression: &IdedExpr) -> Option<&[IdedExpr]> {
    match &expression.expr {
        Expr::List(list) if list.optional_indices.is_empty() => Some(&list.elements),
        _ => None,
    }
}

/// Returns what an expression is made of.
pub(super) fn children(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.iter().map(|target| &**target).chain(&call.args).collect(),
        Expr::Comprehension(all) => {
            vec![&all.iter_range, &all.accu_init, &all.loop_cond, &all.loop_step, &all.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&*select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|entry| parts(&entry.expr)).collect(),
        Expr::Struct(made) => made.entries.iter().flat_map(|entry| parts(&entry.expr)).collect(),
    }
}

fn parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `spec{replicas!, x}`: `!` is all of it, `{*}` are all keys, `[x]` is x of each element.
    fn show(part: &Part) -> String {
        let members = part.members.iter().map(|(name, part)| format!("{name}{}", show(part)));
        let members: Vec<_> = part.keys.then(|| "*".to_owned()).into_iter().chain(members).collect();
        let members = if members.is_empty() { String::new() } else { format!("{{{}}}", members.join(", ")) };
        let elements = part.elements().map(|element| format!("[{}]", show(element))).unwrap_or_default();
        format!("{}{members}{elements}", if part.whole { "!" } else { "" })
    }

    #[track_caller]
    fn check(expression: &str, object: &str, old: &str) {
        let program = cel::Env::stdlib().compile(expression).expect(expression);
        let reads = Reads::of(program.expression());
        assert_eq!((show(&reads.object).as_str(), show(&reads.old).as_str()), (object, old), "{expression}");
    }

    #[test]
    fn only_what_is_named_is_read() {
        check("true", "", "");
        check("type == 'added'", "", "");
        check("object.metadata.namespace == 'a'", "{metadata{namespace!}}", "");
        check("object.spec.replicas > old.spec.replicas", "{spec{replicas!}}", "{spec{replicas!}}");
        check("object.metadata.labels['a/b'] == 'x'", "{metadata{labels{a/b!}}}", "");
        check("has(object.spec.paused)", "{spec{paused}}", "");
        check("has(object.spec) && object.spec.x == 1", "{spec{x!}}", "");
        check("object.spec[cluster] == 1", "{spec!}", "");
        check("object.metadata.name.startsWith('x')", "{metadata{name!}}", "");
        check(".object.kind == 'Pod'", "{kind!}", "");
    }

    #[test]
    fn an_object_as_a_whole_is_read_as_a_whole() {
        check("object == old", "!", "!");
        check("[object].exists(o, o.a == 1)", "!", "");
        check("{'a': object.b}.a == 1 && object.?c.orValue(1) == 1", "!{b!}", "");
    }

    #[test]
    fn of_a_list_its_elements_are_read_and_of_a_map_its_keys() {
        check("object.a.exists(c, c.image == 'x')", "{a{*}[{image!}]}", "");
        check("object.a.all(c, has(c.image))", "{a{*}[{image}]}", "");
        check("object.a.exists_one(c, c.a.b == 1 || c['d'] == 1)", "{a{*}[{a{b!}, d!}]}", "");
        check("object.a.map(c, c.image) != old.a.map(c, c.image)", "{a{*}[{image!}]}", "{a{*}[{image!}]}");
        check("object.a.map(c, c.a == 1, c.b) == []", "{a{*}[{a!, b!}]}", "");
        check("object.a.exists(c, c.ports.exists(p, p.name == 'http'))", "{a{*}[{ports{*}[{name!}]}]}", "");
        check("object.a.exists(c, old.a.all(d, d.x != c.x))", "{a{*}[{x!}]}", "{a{*}[{x!}]}");
        check("object.a.exists(c, true)", "{a{*}[]}", "");
        check("object.exists(k, k == 'a')", "{*}[!]", "");
        check("object.a[0].image == 'x' || object.a[1u].b == 1", "{a[{image!, b!}]}", "");
        check("object.a[0] == object.b[0.0]", "{a[!], b!}", "");
        check("size(object.a) > object.b.size()", "{a{*}[], b{*}[]}", "");
        check("'a' in object.b && object.c in old.d", "{b{a}[!], c!}", "{d{*}[!]}");
    }

    #[test]
    fn what_a_filter_leaves_is_followed() {
        check("object.a.filter(c, c.x == 1).size() > 0", "{a{*}[{x!}]}", "");
        check("object.a.filter(c, c.x == 1).filter(d, d.y).exists(c, c.z == 1)", "{a{*}[{x!, y!, z!}]}", "");
        check("object.a.filter(c, c.x == 1)[0].y == 1", "{a{*}[{x!, y!}]}", "");
        check("object.a.filter(c, c.x == 1) == []", "{a!{*}[{x!}]}", "");
        check("object.a.filter(c, c.x == 1).map(c, c).size() == 1", "{a{*}[!{x!}]}", "");
    }

    #[test]
    fn a_variable_that_escapes_is_read_as_a_whole() {
        for escape in
            ["c == 'x'", "c in [1]", "1 in [c]", "string(c) == 'x'", "{'a': c}.a.b == 1", "[c].exists(d, d.x == 1)"]
        {
            check(&format!("object.a.exists(c, {escape})"), "{a{*}[!]}", "");
        }
        check("object.a.map(c, c).exists(d, d.x == 1)", "{a{*}[!]}", "");
        check("object.a.map(c, {'x': c})[0].x.y == 1", "{a{*}[!]}", "");
        check("object.a.exists(c, (c.x == 1 ? c : c.y).z == 1)", "{a{*}[!{x!, y!}]}", "");
        check("object.a.exists(c, object.b[c.x].y == 1)", "{a{*}[{x!}], b!}", "");
    }

    #[test]
    fn a_name_is_the_variable_of_the_innermost_macro_that_binds_it() {
        check("object.a.exists(c, old.b.exists(c, c.x == 1) && c.y == 1)", "{a{*}[{y!}]}", "{b{*}[{x!}]}");
        check("object.a.exists(object, object.x == 1) && object.y == 1", "{a{*}[{x!}], y!}", "");
        check("old.a.exists(object, .object.x == object.y)", "{x!}", "{a{*}[{y!}]}");
        check("object.a.exists(c, [1].exists(c, c.x == 1))", "{a{*}[]}", "");
        check("object.a.exists(c, c.b.exists(c, c.x == 1))", "{a{*}[{b{*}[{x!}]}]}", "");
        check("object.a.exists(c, object.?b.optMap(c, c.x == 1).orValue(true))", "!{a{*}[]}", "");
    }
}
