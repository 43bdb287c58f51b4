import mdispatch as md


class Map(md.HigherOrderOperator):
    def __call__(self, *args):
        return super().__call__(*args)


first, second = Map("each_price"), Map("each_price")
print(md.ops.higher_order.each_price is first)
