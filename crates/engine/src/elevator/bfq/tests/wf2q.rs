//! B-WF2Q+ alone: eligibility, shares, and the bound of its papers.

use super::super::wf2q::{Entity, ServiceTree};
use super::*;

const fn id(number: u32) -> BfqqId {
    BfqqId(number)
}

/// Adds an empty queue with this weight and budget.
fn enter(tree: &mut ServiceTree, number: u32, entity: &mut Entity, weight: u64, budget: u64) {
    entity.budget = budget;
    entity.service = 0;
    tree.enter(id(number), entity, weight, None);
}

/// Gives the next queue, which is the expected one, a turn of its whole budget.
fn turn(tree: &mut ServiceTree, expected: u32, entity: &mut Entity) {
    assert_eq!(tree.next(), Some(id(expected)));
    tree.served(entity, entity.budget);
    tree.enter_again(id(expected), entity, entity.weight);
    entity.service = 0;
}

/// Queue 0 has half of the weights. In plain fair queueing it would have its five turns in a row,
/// because they finish first. With eligibility the turns alternate. (Queue 5 and the last turn of
/// queue 0 finish at a time.)
#[test]
fn queue_is_not_served_ahead_of_its_share() {
    let mut tree = ServiceTree::default();
    let mut entities = [Entity::default(); 6];
    for (number, entity) in (0..).zip(&mut entities) {
        enter(&mut tree, number, entity, if number == 0 { 50 } else { 10 }, 100);
    }
    let order: Vec<u32> = (0..10)
        .map(|_| {
            let BfqqId(number) = tree.next().unwrap();
            let entity = &mut entities[number as usize];
            tree.served(entity, 100);
            tree.enter_again(id(number), entity, entity.weight);
            entity.service = 0;
            number
        })
        .collect();
    assert_eq!(order, [0, 1, 0, 2, 0, 3, 0, 4, 5, 0]);
}

/// A queue that used a part of its budget is charged for that part only.
#[test]
fn unused_budget_is_not_charged() {
    let mut tree = ServiceTree::default();
    let [mut one, mut other] = [Entity::default(); 2];
    enter(&mut tree, 1, &mut one, 10, 1000);
    enter(&mut tree, 2, &mut other, 10, 1000);
    let mut turns = [0; 2];
    for _ in 0..300 {
        let queue = tree.next().unwrap();
        let is_one = queue == id(1);
        let entity = if is_one { &mut one } else { &mut other };
        tree.served(entity, if is_one { 100 } else { 1000 });
        tree.enter_again(queue, entity, 10);
        entity.service = 0;
        turns[usize::from(!is_one)] += 1;
    }
    // Equal sectors: ten turns for one.
    assert!((265..=280).contains(&turns[0]), "{turns:?}");
}

/// A queue that leaves right after its turn and comes back is not ahead of one that stayed.
#[test]
fn coming_back_gains_nothing() {
    let mut tree = ServiceTree::default();
    let mut stays = Entity::default();
    let mut returns = Entity::default();
    enter(&mut tree, 1, &mut returns, 10, 100);
    enter(&mut tree, 2, &mut stays, 10, 100);
    for _ in 0..20 {
        assert_eq!(tree.next(), Some(id(1)));
        tree.served(&mut returns, 100);
        tree.leave(&mut returns);
        enter(&mut tree, 1, &mut returns, 10, 100);
        turn(&mut tree, 2, &mut stays);
    }
    assert_eq!(tree.weights(), 20);
}

/// After a long absence a queue starts at the present: it has no claim on the past.
#[test]
fn absence_gives_no_credit() {
    let mut tree = ServiceTree::default();
    let mut busy = Entity::default();
    let mut absent = Entity::default();
    enter(&mut tree, 1, &mut busy, 10, 100);
    for _ in 0..50 {
        turn(&mut tree, 1, &mut busy);
    }
    enter(&mut tree, 2, &mut absent, 10, 100);
    let mut in_a_row = 0;
    while tree.next() == Some(id(2)) {
        tree.served(&mut absent, 100);
        tree.enter_again(id(2), &mut absent, 10);
        absent.service = 0;
        in_a_row += 1;
    }
    assert!(in_a_row <= 1, "{in_a_row} turns in a row");
}

/// A queue that resumes its turn starts where its service ended, and so goes before one that has
/// waited as long. Its finish is not left in the past.
#[test]
fn resumed_turn_continues_where_it_ended_up_to_the_present() {
    let mut tree = ServiceTree::default();
    let mut greedy = Entity::default();
    let mut others = [Entity::default(); 2];
    enter(&mut tree, 0, &mut greedy, 10, 1000);
    assert_eq!(tree.next(), Some(id(0)));
    tree.served(&mut greedy, 10);
    tree.leave(&mut greedy);
    for (number, entity) in (1..).zip(&mut others) {
        enter(&mut tree, number, entity, 10, 100);
    }
    for _ in 0..20 {
        let BfqqId(number) = tree.next().unwrap();
        let entity = &mut others[number as usize - 1];
        tree.served(entity, 100);
        tree.enter_again(id(number), entity, 10);
        entity.service = 0;
    }
    greedy.budget = 50;
    greedy.service = 0;
    tree.enter(id(0), &mut greedy, 10, Some(1));
    // It finishes now, before all others, and after this turn it has no more advantage than a
    // whole budget.
    turn(&mut tree, 0, &mut greedy);
    let second = tree.next();
    assert_ne!(second, None);
    let mut in_a_row = 0;
    let mut next = second;
    while next == Some(id(0)) {
        tree.served(&mut greedy, 50);
        tree.enter_again(id(0), &mut greedy, 10);
        greedy.service = 0;
        in_a_row += 1;
        next = tree.next();
    }
    assert!(in_a_row <= 1, "{in_a_row} more turns in a row");
}

/// A queue in the random test, and the service that it lacks.
struct Client {
    weight: u64,
    budget_max: u64,
    entity: Entity,
    is_busy: bool,
    /// Share of all service since its last arrival minus its own, times the sum of the weights; and
    /// the least value so far.
    lag: i128,
    least: i128,
    worst: i128,
}

/// Worst-case fairness (Bennett and Zhang): whenever a queue has requests, it lacks no more than
/// two of its own budgets and its share of the largest one, in any interval.
#[test]
fn no_queue_lacks_more_than_the_bound_in_any_interval() {
    let mut nearest = 0;
    for seed in 0..300 {
        let mut random = Random(seed);
        let count = 2 + random.below(30);
        let mut clients: Vec<Client> = (0..count)
            .map(|_| Client {
                weight: 10 * (1 + random.below(8)) * random.one_of(&[1, 1, 1, 30]),
                budget_max: random.one_of(&[8, 100, 512, 16_384]),
                entity: Entity::default(),
                is_busy: false,
                lag: 0,
                least: 0,
                worst: 0,
            })
            .collect();
        let weights: u64 = clients.iter().map(|client| client.weight).sum();
        let budget_max = clients.iter().map(|client| client.budget_max).max().unwrap();
        let mut tree = ServiceTree::default();
        for _ in 0..2000 {
            for (number, client) in (0..).zip(&mut clients) {
                if !client.is_busy && random.one_in(8) {
                    let budget = 1 + random.below(client.budget_max);
                    enter(&mut tree, number, &mut client.entity, client.weight, budget);
                    client.is_busy = true;
                    client.lag = 0;
                    client.least = 0;
                }
            }
            let Some(BfqqId(number)) = tree.next() else { continue };
            let budget = clients[number as usize].entity.budget;
            let mut used = if random.one_in(3) { 1 + random.below(budget) } else { budget };
            let leaves = random.one_in(10);
            while used > 0 {
                let sectors = used.min(1 + random.below(256));
                used -= sectors;
                tree.served(&mut clients[number as usize].entity, sectors);
                for (other, client) in (0..).zip(&mut clients) {
                    let own = if other == number { sectors } else { 0 };
                    client.lag += i128::from(sectors * client.weight) - i128::from(own * weights);
                    client.least = client.least.min(client.lag);
                    if client.is_busy {
                        client.worst = client.worst.max(client.lag - client.least);
                    }
                }
            }
            let client = &mut clients[number as usize];
            if leaves {
                tree.leave(&mut client.entity);
                client.is_busy = false;
            } else {
                client.entity.budget = 1 + random.below(client.budget_max);
                tree.enter_again(id(number), &mut client.entity, client.weight);
                client.entity.service = 0;
            }
        }
        for client in &clients {
            let bound = 2 * client.budget_max * weights + client.weight * budget_max;
            let worst = client.worst;
            assert!(worst <= i128::from(bound), "seed {seed}: {worst} beyond {bound}");
            nearest = nearest.max(worst * 1000 / i128::from(bound));
        }
    }
    assert!(nearest > 400, "the nearest was {nearest} thousandths of the bound");
}
